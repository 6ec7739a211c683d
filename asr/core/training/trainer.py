"""Lightning's Trainer, made from the settings, with its loggers, callbacks and signal handlers."""

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from asr.base.settings.read import as_mapping
from asr.base.system.signals import StopRequest
from asr.core.build import several
from asr.core.checkpoint.saved import CHECKPOINTS
from asr.core.run.names import METRICS
from asr.core.training.checkpointing import Saving
from asr.core.training.lightning_internals import replace_signal_handlers
from asr.core.training.metrics import MetricsFile, TensorBoardTexts
from asr.core.training.objective import Measure
from asr.core.training.progress import progress_callbacks
from asr.core.training.sharding import Sharded
from asr.errors import InputError, how_to_install, reason_of, shown

if TYPE_CHECKING:
    from asr.core.run.resume import RunRecord
    from asr.core.run.run import Run
    from asr.core.run.settings import TrainingSettings
    from asr.core.training.data_module import TrainingData

OWN: dict[str, Any] = {  # arguments of the Trainer that asr sets itself
    "logger": False,  # `equip` adds loggers
    "enable_checkpointing": False,  # `equip` adds the callback
    "use_distributed_sampler": False,  # the batch plan distributes the utterances
    "reload_dataloaders_every_n_epochs": 1,  # each epoch has its own batch plan
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "gradient_clip_algorithm": "norm",  # asr's own clipping, by the norm
}
INSTEAD = {  # settings of asr that have the purpose of an argument in OWN
    "logger": "logger",
    "callbacks": "callback",
    "enable_checkpointing": "checkpoint",
    "default_root_dir": "run_dir",
    "gradient_clip_algorithm": "trainer.gradient_clip_val",
}


def chosen_loggers(components: Mapping[str, Any]) -> list[partial[Logger]]:
    """Return the loggers of services that the settings choose; a logger has the name of the package that it needs."""
    loggers = several(components, "logger")
    for name in loggers:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name is not a package
            raise InputError(f"logger={name} needs the package {name}; it is not installed. {how_to_install(name)}")
    return list(loggers.values())


def make_trainer(settings: "TrainingSettings") -> pl.Trainer:
    """Make the trainer, which chooses the device and the number of processes; `equip` adds loggers and callbacks."""
    _quieten_libraries()
    arguments: dict[str, Any] = as_mapping(settings.trainer)
    if arguments["accelerator"] == "auto":  # as in the other commands; MPS is never chosen automatically
        arguments["accelerator"] = "gpu" if torch.cuda.is_available() else "cpu"
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if arguments["accelerator"] in ("gpu", "cuda") and not has_gpu:
        must = f"trainer.accelerator={arguments['accelerator']} needs a GPU that torch can use; there is none"
        chosen = "leave out the choice that set it: trainer=gpu, trainer=ddp, or an experiment"
        raise InputError(f"{must}. Give trainer.accelerator=cpu, or {chosen}.")
    if arguments["accelerator"] == "mps" and not torch.backends.mps.is_available():
        raise InputError(
            "trainer.accelerator must be available to torch; got mps, which needs an Apple GPU. Give cpu or gpu."
        )
    if settings.trainer.is_sharded:
        arguments["strategy"] = Sharded("gloo" if arguments["accelerator"] == "cpu" else "nccl")
    chosen_loggers(settings.components)
    callbacks = progress_callbacks(Path(settings.run_dir))
    own = OWN | {
        "callbacks": callbacks,
        "default_root_dir": settings.run_dir,
        "enable_progress_bar": any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
    }
    if settings.trainer.is_sharded:
        own["inference_mode"] = False  # weights gathered in inference mode would be useless for training
    others = settings.trainer.others
    for name in sorted(own.keys() & others.keys()):
        hint = f"; {INSTEAD[name]} has its purpose" if name in INSTEAD else ""
        raise InputError(f"trainer.{name} must be left out, because asr sets it; got {shown(others[name])}{hint}.")
    try:
        trainer = pl.Trainer(**arguments | own)
    except Exception as error:  # Lightning passes on errors of any kind
        raise InputError(refusal(error, others)) from None
    if trainer.limit_train_batches == 0:
        raise InputError("trainer.limit_train_batches must be above 0, because a run takes at least one step; got 0.")
    _check_validation(trainer)
    # Lightning would silently use bfloat16 on a CPU.
    if trainer.strategy.root_device.type == "cpu" and str(settings.trainer.precision).startswith("16"):
        must = "trainer.precision must be 32-true or bf16-mixed on a CPU"
        raise InputError(f"{must}; got {settings.trainer.precision}.")
    if trainer.global_rank > 0:  # the first process logs everything, the others only errors
        logging.getLogger("asr").setLevel(logging.ERROR)
    return trainer


def refusal(error: Exception, others: Mapping[str, Any]) -> str:
    """Return the message for an error that Lightning raises because of arguments of its Trainer.

    Args:
        error: Lightning's error.
        others: arguments that asr does not check.
    """
    given = ", ".join(f"trainer.{name}={shown(value)}" for name, value in others.items())
    hint = f" Correct or leave out {given}." if others else ""
    return f"trainer must suit Lightning, this machine and the run; Lightning reports: {reason_of(error)}.{hint}"


def equip(
    trainer: pl.Trainer,
    run: "Run[Any]",
    record: "RunRecord",
    data: "TrainingData",
    measure: Measure,
    others: list[pl.Callback],
) -> StopRequest:
    """Add loggers, callbacks and signal handlers to the trainer.

    Args:
        trainer: trainer of the run.
        run: the run.
        record: record of the run to which the checkpoints belong.
        data: the data to train on.
        measure: metric of validations, which selects checkpoints.
        others: callbacks except checkpointing, in order.

    Returns:
        The request to stop, which a signal makes.
    """
    settings, run_dir = run.settings, run.dir
    resolved = as_mapping(settings)
    tensorboard = TensorBoardLogger(run_dir, name="tensorboard", version="", purge_step=run.step + 1)
    services = [make(run_dir, record.id, resolved) for make in chosen_loggers(settings.components)]
    trainer.loggers = [MetricsFile(run_dir / METRICS, run.step), tensorboard, *services]
    stop = StopRequest(speaks=trainer.is_global_zero)
    saving = Saving(run_dir / CHECKPOINTS, record, data.epochs, stop, settings.checkpoint, measure.name)
    texts = TensorBoardTexts(tensorboard, resolved, run_dir)
    trainer.callbacks += [*others, texts, saving]  # type: ignore[attr-defined]  # last, so that checkpoints contain the other callbacks' final state
    replace_signal_handlers(trainer, stop.listen, stop.give_back)
    return stop


def _quieten_libraries() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are only useful with Lightning's defaults


def accumulate(trainer: pl.Trainer, number: int) -> None:
    """Set the number of batches in an optimizer step, which may follow from batches that are found in the preparation.

    Raises:
        InputError: a validation would run within an optimizer step.
    """
    trainer.accumulate_grad_batches = number
    _check_validation(trainer)


def _check_validation(trainer: pl.Trainer) -> None:
    """Check that each validation runs between two optimizer steps, where a checkpoint can be written."""
    accumulated, every = trainer.accumulate_grad_batches, trainer.val_check_interval
    # The float 1.0 means a validation at the end of an epoch, which also ends an optimizer step; the integer 1 means a
    # validation after every batch.
    in_step = every % accumulated == 0 if isinstance(every, int) else every == 1.0
    if accumulated > 1 and (trainer.check_val_every_n_epoch is None or not in_step):
        must = "trainer.val_check_interval must be 1.0 or a multiple of trainer.accumulate_grad_batches"
        given = f"got {every} and {accumulated}, check_val_every_n_epoch={trainer.check_val_every_n_epoch}"
        raise InputError(f"{must}, and trainer.check_val_every_n_epoch must be a number; {given}.")
