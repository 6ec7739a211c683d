"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

from asr.experiment import experiment_command  # isort: skip  # before torch: it says how threads wait

import contextlib
import logging
import math
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asr.errors import AudioError, InputError

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from asr.corpus import Corpus
    from asr.data.module import SpeechData
    from asr.interfaces import Features, Tokenizer
    from asr.recognizer import Recognizer
    from asr.resume import Resume
    from asr.task import RecognitionTask

logger = logging.getLogger("asr.train")


class Prepared(NamedTuple):
    """What there must be before a model can be made."""

    run_dir: Path
    corpus: "Corpus"
    tokenizer: "Tokenizer"
    features: "Features"
    settings: dict[str, Any]  # what must stay the same for the run to go on
    resume: "Resume | None"


def train(config: dict[str, Any]) -> None:
    """Run one training from its resolved config: from the corpus to results.json."""
    import lightning.pytorch as pl
    import torch

    from asr import build, run
    from asr.checkpoint import checkpoint_extra, fitted_files
    from asr.data.module import SpeechData
    from asr.launch import first_then_all
    from asr.recompute import recompute_blocks
    from asr.task import RecognitionTask, Unreadable

    _quieten_libraries()
    trainer = _trainer(config)
    if trainer.global_rank > 0:  # of many processes only the first speaks, unless it is an error
        logging.getLogger("asr").setLevel(logging.ERROR)
    run_dir, corpus, tokenizer, features, settings, resume = first_then_all(
        trainer, partial(_prepare, config, trainer.global_rank, trainer.world_size)
    )
    position = resume.position.on(trainer.world_size) if resume else None
    torch.set_num_threads(config["num_threads"])

    pl.seed_everything(config["seed"], verbose=False)
    recognizer = build.build_recognizer(config, tokenizer, features)
    if config["gradient_checkpointing"]:
        recompute_blocks(recognizer.encoder)
    corpus.check_coverage(tokenizer)
    _describe(recognizer, corpus)

    augmentation = build.build_augmentation(config, features.sample_rate)
    reference, seed = recognizer.reference, config["seed"]
    data = SpeechData(corpus.train, corpus.valid, features, reference, augmentation, seed, position, **config["data"])
    task = RecognitionTask(
        recognizer,
        partial(build.build_optimizer, config),
        build.build_schedule(config),
        _total_steps(trainer, data),
        seed,
        Unreadable(data.max_skipped, position.epoch, position.skipped) if position else Unreadable(data.max_skipped),
        checkpoint_extra(config, fitted_files(tokenizer, features)),
        run_dir / run.FAULTS,
    )
    _equip(trainer, config, run_dir, data, settings, resume)
    if resume:
        where = f"epoch {resume.position.epoch + 1}, batch {resume.position.batch + 1}"
        logger.info("going on from step %d, %s: %s", resume.step, where, resume.path)
    _fit(trainer, task, data, resume)

    if trainer.is_global_zero:
        bundle = run.make_bundle(run_dir, config)
        logger.info("bundle written to %s", bundle)
        results = run.test_bundle(bundle, corpus.tests, trainer.strategy.root_device)
        for name, counts in results.items():
            print(f"{name}: WER {100 * counts.wer:.2f} % of {counts.reference_words} words")


def _quieten_libraries() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # hints about workers and folders, for its own defaults


def _prepare(config: dict[str, Any], rank: int, world_size: int) -> Prepared:
    """Enter the run folder, read the corpus, fit the tokenizer; or take up what the first process did of it."""
    from asr import resume, run
    from asr.checkpoint import CHECKPOINTS, fitted_files
    from asr.corpus import prepare_if_absent, read_corpus
    from asr.text import get_normalizer

    run_dir, first = Path(config["run_dir"]), rank == 0
    if first:
        prepare_if_absent(config["corpus"])
        run.open_run_dir(run_dir)
    corpus = read_corpus(config["corpus"], get_normalizer(config["normalizer"]))
    found = resume.find_resume(run_dir / CHECKPOINTS)
    if found is None and first:
        run.begin_anew(run_dir)
    tokenizer, features = run.fitted_front_end(config, corpus, run_dir, keep=first)
    splits = {"train": corpus.train, "valid": corpus.valid}
    settings = resume.run_settings(config, splits, fitted_files(tokenizer, features), world_size)
    if first:
        if found is not None:
            resume.check_same(found.settings, settings, config["resume"]["allow"])
        run.save_config(run_dir, config)
    return Prepared(run_dir, corpus, tokenizer, features, settings, found)


def _describe(recognizer: "Recognizer", corpus: "Corpus") -> None:
    from asr.data.dataset import load_utterance

    millions = sum(parameter.numel() for parameter in recognizer.parameters()) / 1e6
    hours = sum(utterance.duration for utterance in corpus.train) / 3600
    name, tokens = type(recognizer.encoder).__name__, recognizer.tokenizer.vocab_size
    logger.info("%s with %.1f M parameters, %d tokens", name, millions, tokens)
    logger.info("%d training utterances, %.2f h; %d to validate on", len(corpus.train), hours, len(corpus.valid))
    with contextlib.suppress(AudioError):  # the epoch that reads it says so
        load_utterance(corpus.train[0], recognizer.features.sample_rate)  # notes a conversion; workers keep quiet


def _trainer(config: dict[str, Any]) -> "Trainer":
    import lightning.pytorch as pl
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from asr.progress import progress_callbacks

    settings = dict(config["trainer"])
    if settings["accelerator"] == "auto":  # as the other commands: what is left, MPS, knows no float64
        settings["accelerator"] = "gpu" if torch.cuda.is_available() else "cpu"
    callbacks = progress_callbacks()
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
        return make()
    except MisconfigurationException as error:
        raise InputError(f"trainer must suit this machine; Lightning says: {error}") from None


def _equip(
    trainer: "Trainer",
    config: dict[str, Any],
    run_dir: Path,
    data: "SpeechData",
    settings: dict[str, Any],
    resume: "Resume | None",
) -> None:
    """Give the trainer what belongs to the run folder: metrics, and what happens besides the steps, in this order."""
    from lightning.pytorch.callbacks import EMAWeightAveraging
    from lightning.pytorch.loggers import TensorBoardLogger

    from asr import run
    from asr.checkpoint import CHECKPOINTS
    from asr.early_stopping import Patience
    from asr.interruption import StopRequest
    from asr.metrics import MetricsFile
    from asr.saving import Saving
    from asr.trial import LargestBatchFirst

    done = resume.step if resume else 0
    tensorboard = TensorBoardLogger(run_dir, name="tensorboard", version="", purge_step=done)
    trainer.loggers = [MetricsFile(run_dir / run.METRICS, done), tensorboard]
    callbacks: list[Callback] = [LargestBatchFirst(data.worst_batches)]
    if config["ema"]["decay"] is not None:
        callbacks.append(EMAWeightAveraging(decay=config["ema"]["decay"]))
    if config["early_stopping"]["patience"] is not None:
        callbacks.append(Patience(config["early_stopping"]["patience"]))
    folder, stop = run_dir / CHECKPOINTS, StopRequest(speaks=trainer.is_global_zero)
    saving = Saving(folder, settings, data.position_at, stop, **config["checkpoint"])
    trainer.callbacks += [*callbacks, saving]  # type: ignore[attr-defined]  # what it saves is behind all others


def _total_steps(trainer: "Trainer", data: "SpeechData") -> int:
    """Count the optimizer steps of the whole run, for the schedule."""
    bounds = [trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        batches = data.steps_per_epoch(trainer.world_size)
        bounds.append(trainer.max_epochs * math.ceil(batches / trainer.accumulate_grad_batches))
    if not bounds:
        given = f"got {trainer.max_epochs} and {trainer.max_steps}"
        raise InputError(f"trainer.max_epochs or trainer.max_steps must be positive, to bound the run; {given}.")
    logger.info("%d steps: the smaller of trainer.max_epochs and trainer.max_steps, where both are set", min(bounds))
    return min(bounds)


def _fit(trainer: "Trainer", task: "RecognitionTask", data: "SpeechData", resume: "Resume | None") -> None:
    """Train to the end, or until something stops it, which is said in the user's words."""
    from asr.interruption import Stopped
    from asr.launch import stop_others
    from asr.trial import HINT, describe, is_out_of_memory

    try:
        trainer.fit(task, data, ckpt_path=resume.path if resume else None, weights_only=True)
    except Stopped:
        if trainer.global_rank > 0:
            raise SystemExit(0) from None
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            batch = describe(task.batch, task.recognizer.features.frame_shift_seconds) if task.batch else "a batch"
            raise InputError(f"memory must hold {batch}; it does not. {HINT}.") from None
        if "DataLoader worker" in str(error):
            what = f"a process that reads audio has died: {str(error).splitlines()[0]}"
            raise InputError(
                f"{what}. Run the same command to go on; fewer data.num_workers take less memory."
            ) from None
        raise
    finally:
        if trainer.interrupted:
            stop_others(trainer)


main = experiment_command(train)

if __name__ == "__main__":
    main()
