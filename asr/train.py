"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

import contextlib
import logging
import secrets
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asr.errors import AudioError, InputError, is_out_of_memory
from asr.text.printable import printable
from asr.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from asr.data.corpus import Corpus
    from asr.interfaces import Features, Tokenizer
    from asr.recognition.recognizer import Recognizer
    from asr.run.events import EventsFile, Start
    from asr.run.resume import Resume
    from asr.training.checkpointing import Saving
    from asr.training.data_module import SpeechData
    from asr.training.signals import StopRequest
    from asr.training.task import RecognitionTask

LOST_WORKER = (ConnectionError, EOFError, FileNotFoundError)  # beside torch's own error

logger = logging.getLogger("asr.train")


class Prepared(NamedTuple):
    """What there must be before a model can be made."""

    run_dir: Path
    corpus: "Corpus"
    tokenizer: "Tokenizer"
    features: "Features"
    settings: dict[str, Any]  # what must stay the same for the run to go on
    resume: "Resume | None"
    changed: bool  # whether it goes on under other settings


def train(config: dict[str, Any]) -> None:
    """Run one training from its resolved config: from the corpus to results.json."""
    import lightning.pytorch as pl
    import torch

    from asr import build
    from asr.checkpoint.load import CHECKPOINTS, checkpoint_extra, fitted_files
    from asr.data.epoch_plan import RunBounds
    from asr.data.position import start_of_epoch
    from asr.report.training import leave_report
    from asr.run import folder
    from asr.run.events import Bundled, EventsFile
    from asr.run.names import EVENTS, EXAMPLES, FAULTS
    from asr.run.resume import Run
    from asr.run.validation_samples import ExamplesFile, choose_examples
    from asr.system.processes import keep_memory
    from asr.training.checkpointing import Saving
    from asr.training.data_module import SpeechData
    from asr.training.distributed import first_then_all
    from asr.training.gradient_checkpointing import recompute_blocks
    from asr.training.signals import StopRequest
    from asr.training.task import RecognitionTask, Unreadable

    _quieten_libraries()
    keep_memory()
    events = EventsFile(Path(config["run_dir"], EVENTS))
    trainer = _trainer(config, events)
    if trainer.global_rank > 0:  # of many processes only the first speaks, unless it is an error
        logging.getLogger("asr").setLevel(logging.ERROR)
    run_dir, corpus, tokenizer, features, settings, resume, changed = first_then_all(
        trainer, partial(_prepare, config, trainer.global_rank, trainer.world_size)
    )
    position = resume.position.on(trainer.world_size) if resume else start_of_epoch(0, trainer.world_size)
    torch.set_num_threads(config["num_threads"])

    pl.seed_everything(config["seed"], verbose=False)
    recognizer = build.build_recognizer(config, tokenizer, features)
    if config["gradient_checkpointing"]:
        recompute_blocks(recognizer.encoder)
    corpus.check_coverage(tokenizer)
    step = resume.step if resume else 0
    start = _start(step, recognizer, corpus)
    if trainer.is_global_zero:
        events.append(start)

    augmentation = build.build_augmentation(config, features.sample_rate)
    reference, seed = recognizer.reference, config["seed"]
    data = SpeechData(corpus.train, corpus.valid, features, reference, augmentation, seed, position, **config["data"])
    bounds = RunBounds.of(config["trainer"])
    total_steps = resume.run.total_steps if resume and not changed else data.total_steps(step, bounds)
    logger.info("%d steps: the smaller of trainer.max_epochs and trainer.max_steps, where both are set", total_steps)
    examples = ExamplesFile(run_dir / EXAMPLES, choose_examples(corpus.valid))
    if trainer.is_global_zero:
        examples.cut(step)
    task = RecognitionTask(
        recognizer,
        partial(build.build_optimizer, config),
        build.build_schedule(config),
        total_steps,
        seed,
        Unreadable(data.max_skipped, position.epoch, position.skipped),
        checkpoint_extra(config, fitted_files(tokenizer, features)),
        run_dir / FAULTS,
        data.waiting,
        examples,
    )
    checkpoints, stop = run_dir / CHECKPOINTS, StopRequest(speaks=trainer.is_global_zero)
    this_run = Run(settings, total_steps, resume.run.id if resume else secrets.token_hex(8))
    saving = Saving(checkpoints, this_run, data.position_at, stop, **config["checkpoint"])
    _equip(trainer, config, run_dir, data, saving, stop, step)
    if resume and _is_finished(trainer, resume):
        logger.info("the run is finished, at step %d: %s", resume.step, resume.path)
    elif resume:
        where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        logger.info("going on from step %d, %s: %s", resume.step, where, resume.path)
    _fit(trainer, task, data, resume, stop)

    if trainer.is_global_zero:
        bundle = folder.make_bundle(run_dir, config)
        logger.info("bundle written to %s", bundle)
        events.append(Bundled())
        results = folder.test_bundle(bundle, corpus.tests, trainer.strategy.root_device)
        for name, evaluation in results.items():
            print(f"{printable(name)}: {evaluation.summary()}")
        leave_report(run_dir)


def _quieten_libraries() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # hints about workers and folders, for its own defaults


def _prepare(config: dict[str, Any], rank: int, world_size: int) -> Prepared:
    """Enter the run folder, read the corpus, fit the tokenizer; or take up what the first process did of it."""
    from asr.checkpoint.bundle import check_attachable
    from asr.checkpoint.load import CHECKPOINTS, fitted_files
    from asr.data.corpus import prepare_if_absent, read_corpus
    from asr.run import folder, resume
    from asr.text.normalize import get_normalizer

    run_dir, first = Path(config["run_dir"]), rank == 0
    check_attachable(config["decode"])  # before the training whose bundle it would not fit into
    if first:
        prepare_if_absent(config["corpus"])
        folder.open_run_dir(run_dir)
    corpus = read_corpus(config["corpus"], get_normalizer(config["normalizer"]))
    found = resume.find_resume(run_dir / CHECKPOINTS)
    if found is None:
        corpus.check_audio()  # a run that goes on skips what has disappeared, as it would have done
    if found is None and first:
        folder.begin_anew(run_dir)
    tokenizer, features = folder.fitted_front_end(config, corpus, run_dir, keep=first)
    splits = {"train": corpus.train, "valid": corpus.valid}
    settings = resume.run_settings(config, splits, fitted_files(tokenizer, features), world_size)
    changed = resume.changes(found.run.settings, settings) if found else {}
    if first:
        resume.check_allowed(changed, run_dir, config["resume"]["allow"])
        folder.save_config(run_dir, config)
    return Prepared(run_dir, corpus, tokenizer, features, settings, found, bool(changed))


def _start(step: int, recognizer: "Recognizer", corpus: "Corpus") -> "Start":
    """Say what is about to be trained, on what."""
    from asr.data.dataset import load_utterance
    from asr.run.events import Start

    parameters = sum(parameter.numel() for parameter in recognizer.parameters())
    hours = sum(utterance.duration for utterance in corpus.train) / 3600
    name, tokens = type(recognizer.encoder).__name__, recognizer.tokenizer.vocab_size
    logger.info("%s with %s parameters, %d tokens", name, f"{parameters:,}", tokens)
    logger.info("%d training utterances, %.2f h; %d to validate on", len(corpus.train), hours, len(corpus.valid))
    with contextlib.suppress(AudioError):  # the epoch that reads it says so
        load_utterance(corpus.train[0], recognizer.features.sample_rate)  # notes a conversion; workers keep quiet
    return Start(step, name, parameters, tokens, len(corpus.train), hours, len(corpus.valid))


def _trainer(config: dict[str, Any], events: "EventsFile") -> "Trainer":
    import lightning.pytorch as pl
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from asr.training.progress import progress_callbacks

    settings = dict(config["trainer"])
    if settings["accelerator"] == "auto":  # as the other commands: what is left, MPS, knows no float64
        settings["accelerator"] = "gpu" if torch.cuda.is_available() else "cpu"
    callbacks = progress_callbacks(events)
    make = partial(
        pl.Trainer,
        **settings,
        callbacks=callbacks,
        logger=False,  # `_equip` gives it some
        enable_checkpointing=False,  # the same
        default_root_dir=config["run_dir"],
        use_distributed_sampler=False,  # the plan shards itself
        reload_dataloaders_every_n_epochs=1,  # each epoch has its plan, and its loader
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
    )
    try:
        trainer = make()
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise InputError(f"trainer must suit Lightning and this machine; Lightning says: {error}") from None
    _check_validation(trainer)
    if trainer.strategy.root_device.type == "cpu" and trainer.precision.startswith("16"):
        must = "trainer.precision must be 32-true, 64-true, bf16-mixed or bf16-true on a CPU"
        raise InputError(f"{must}; got {trainer.precision}.")
    return trainer


def _check_validation(trainer: "Trainer") -> None:
    """Check that each validation is between two optimizer steps, where a checkpoint can be written."""
    window, every = trainer.accumulate_grad_batches, trainer.val_check_interval
    # 1.0 is the end of an epoch, which ends a window, too; 1 is every batch.
    in_step = every % window == 0 if isinstance(every, int) else every == 1.0
    if window > 1 and (trainer.check_val_every_n_epoch is None or not in_step):
        must = "trainer.val_check_interval must be 1.0 or a multiple of trainer.accumulate_grad_batches"
        given = f"got {every} and {window}, check_val_every_n_epoch={trainer.check_val_every_n_epoch}"
        raise InputError(f"{must}, and check_val_every_n_epoch a number; {given}.")


def _equip(
    trainer: "Trainer",
    config: dict[str, Any],
    run_dir: Path,
    data: "SpeechData",
    saving: "Saving",
    stop: "StopRequest",
    step: int,
) -> None:
    """Give the trainer its loggers, what happens besides the steps, in this order, and our way with signals."""
    from lightning.pytorch.callbacks import EMAWeightAveraging
    from lightning.pytorch.loggers import TensorBoardLogger

    from asr.run.names import METRICS
    from asr.training.early_stopping import Patience
    from asr.training.memory_check import LargestBatchFirst
    from asr.training.metrics import MetricsFile

    tensorboard = TensorBoardLogger(run_dir, name="tensorboard", version="", purge_step=step + 1)
    trainer.loggers = [MetricsFile(run_dir / METRICS, step), tensorboard]
    callbacks: list[Callback] = [LargestBatchFirst(data.worst_batches)]
    if config["ema"]["decay"] is not None:
        callbacks.append(EMAWeightAveraging(decay=config["ema"]["decay"]))
    if config["early_stopping"]["patience"] is not None:
        callbacks.append(Patience(config["early_stopping"]["patience"]))
    trainer.callbacks += [*callbacks, saving]  # type: ignore[attr-defined]  # what it saves is behind all others
    # Lightning's own handlers talk to other processes and write checkpoints in the middle of whatever was going on.
    trainer._signal_connector.register_signal_handlers = stop.listen  # type: ignore[method-assign]
    trainer._signal_connector.teardown = stop.give_back  # type: ignore[method-assign]


def _is_finished(trainer: "Trainer", resume: "Resume") -> bool:
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    return (0 < epochs <= resume.position.epoch) or (0 < steps <= resume.step)


def _fit(
    trainer: "Trainer", task: "RecognitionTask", data: "SpeechData", resume: "Resume | None", stop: "StopRequest"
) -> None:
    """Train to the end, or until something stops it, which is said in the user's words."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from asr.training.distributed import is_lost_connection, report_lost_connection, stop_others, take_leave
    from asr.training.memory_check import HINT, describe
    from asr.training.signals import Stopped

    try:
        trainer.fit(task, data, ckpt_path=resume.path if resume else None, weights_only=True)
        take_leave()
    except Stopped:
        if not stop.at_once:  # then the others know
            take_leave()
        if trainer.global_rank > 0:
            raise SystemExit(0) from None
        raise
    except MisconfigurationException as error:
        raise InputError(f"trainer must suit the run; Lightning says: {error}") from None
    except (RuntimeError, MemoryError, *LOST_WORKER) as error:
        if stop.at_once:  # in the middle of whatever it was
            raise Stopped(stop.signum) from None
        if is_out_of_memory(error):
            batch = describe(task.batch, task.recognizer.features) if task.batch else "a batch"
            raise InputError(f"memory must hold {batch}; it does not. {HINT}.") from None
        if "DataLoader worker" in str(error) or _lost_worker(error):
            reason = (str(error) or type(error).__name__).splitlines()[0]
            what = f"a process that reads audio has died: {reason}"
            raise InputError(
                f"{what}. Run the same command to go on; fewer data.num_workers take less memory."
            ) from None
        if trainer.world_size > 1 and is_lost_connection(error):
            report_lost_connection(trainer)
        raise
    finally:
        if trainer.interrupted:
            stop_others(trainer)


def _lost_worker(error: BaseException) -> bool:
    """Tell whether a worker has died while it handed a batch on; an absent file has a name, a socket has none."""
    return isinstance(error, LOST_WORKER) and getattr(error, "filename", None) is None


main = experiment_command(train)

if __name__ == "__main__":
    main()
