"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

import contextlib
import logging
import math
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from asr.errors import AudioError, InputError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from asr.corpus import Corpus
    from asr.data.module import SpeechData
    from asr.interfaces import Features, Tokenizer
    from asr.recognizer import Recognizer

# Before torch is imported: threads that wait for one another spin for some 30 us, as long as a small net's operations
# last, and then sleep. Sleeping at once takes half as long again; spinning for long takes 10 times as long where the
# cores are shared.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

HERE = Path(__file__).parent
CONF = HERE / "conf" if (HERE / "conf").is_dir() else HERE.parent / "conf"  # in a wheel it lies inside the package

logger = logging.getLogger("asr.train")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> None:
    """Train as `config` says; what the user got wrong is one line and exit status 1."""
    try:
        train(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]
    except InputError as error:
        logger.error("error: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        logger.error("interrupted")
        sys.exit(130)


def train(config: dict[str, Any]) -> None:
    """Run one training from its resolved config: from the corpus to results.json."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    from asr import build, run
    from asr.checkpoint import checkpoint_extra, fitted_files
    from asr.corpus import prepare_if_absent, read_corpus
    from asr.data.module import SpeechData
    from asr.task import RecognitionTask
    from asr.text import get_normalizer

    rank = rank_zero_only.rank  # type: ignore[attr-defined]
    _start_log(rank)
    if rank == 0:
        prepare_if_absent(config["corpus"])
    run_dir = run.open_run_dir(config, rank)
    pl.seed_everything(config["seed"], verbose=False)
    torch.set_num_threads(config["num_threads"])

    corpus = read_corpus(config["corpus"], get_normalizer(config["normalizer"]))
    tokenizer, features = _fitted(config, corpus, run_dir)
    recognizer = build.build_recognizer(config, tokenizer, features)
    corpus.check_coverage(tokenizer)
    _describe(recognizer, corpus)

    augmentation = build.build_augmentation(config, features.sample_rate)
    reference, seed = recognizer.reference, config["seed"]
    data = SpeechData(corpus.train, corpus.valid, features, reference, augmentation, seed, **config["data"])
    trainer = _trainer(config, run_dir)
    task = RecognitionTask(
        recognizer,
        partial(build.build_optimizer, config),
        build.build_schedule(config),
        _total_steps(trainer, data),
        seed,
        checkpoint_extra(config, fitted_files(tokenizer, features)),
    )
    last = run.last_checkpoint(run_dir)
    if last is not None:
        logger.info("going on from %s", last)
    trainer.fit(task, data, ckpt_path=last, weights_only=True)

    if trainer.is_global_zero:
        bundle = run.make_bundle(run_dir, config, trainer.global_step)
        logger.info("bundle written to %s", bundle)
        results = run.test_bundle(bundle, corpus.tests, trainer.strategy.root_device)
        for name, counts in results.items():
            print(f"{name}: WER {100 * counts.wer:.2f} % of {counts.reference_words} words")


def _start_log(rank: int) -> None:
    """Log to stderr; of many processes, only the first speaks, and libraries only when something is wrong."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("asr")
    ours.handlers = [to_stderr]
    ours.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    logging.getLogger("asr.task").setLevel(logging.WARNING)  # each process names the utterances that it skips
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")  # hints about workers and folders, for its own defaults


def _fitted(config: dict[str, Any], corpus: "Corpus", run_dir: Path) -> "tuple[Tokenizer, Features]":
    """Make tokenizer and features; fit them to the training set, or take up what the run learnt before."""
    from asr import build, run
    from asr.checkpoint import fitted_files
    from asr.data.dataset import energies

    tokenizer, features = build.build_tokenizer(config), build.build_features(config)
    files = run.load_fitted(run_dir)
    if files:
        tokenizer.load(files)
        features.normalize.load(files)
    else:
        tokenizer.fit(utterance.text for utterance in corpus.train)
        features.normalize.fit(energies(corpus.train, features, seed=config["seed"]))
        run.save_fitted(run_dir, fitted_files(tokenizer, features))
    return tokenizer, features


def _describe(recognizer: "Recognizer", corpus: "Corpus") -> None:
    from asr.data.dataset import load_utterance

    millions = sum(parameter.numel() for parameter in recognizer.parameters()) / 1e6
    hours = sum(utterance.duration for utterance in corpus.train) / 3600
    name, tokens = type(recognizer.encoder).__name__, recognizer.tokenizer.vocab_size
    logger.info("%s with %.1f M parameters, %d tokens", name, millions, tokens)
    logger.info("%d training utterances, %.2f h; %d to validate on", len(corpus.train), hours, len(corpus.valid))
    with contextlib.suppress(AudioError):  # the epoch that reads it says so
        load_utterance(corpus.train[0], recognizer.features.sample_rate)  # notes a conversion; workers keep quiet


def _trainer(config: dict[str, Any], run_dir: Path) -> "Trainer":
    import lightning.pytorch as pl
    import torch
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import TensorBoardLogger

    from asr import run
    from asr.metrics import MetricsFile
    from asr.progress import progress_callbacks

    folder = run_dir / run.CHECKPOINTS
    best = ModelCheckpoint(
        dirpath=folder,
        filename=run.KEPT_NAME,
        auto_insert_metric_name=False,
        monitor="valid/wer",
        save_top_k=config["checkpoint"]["keep"],
        save_on_train_epoch_end=False,  # but right after a validation, whose WER is then this state's
    )
    last = ModelCheckpoint(
        dirpath=folder, filename=run.LAST, save_on_train_epoch_end=True, enable_version_counter=False
    )
    loggers = [MetricsFile(run_dir / run.METRICS), TensorBoardLogger(run_dir, name="tensorboard", version="")]
    callbacks = [best, last, *progress_callbacks()]
    settings = dict(config["trainer"])
    if settings["accelerator"] == "auto":  # as the other commands: what is left, MPS, knows no float64
        settings["accelerator"] = "gpu" if torch.cuda.is_available() else "cpu"
    make = partial(
        pl.Trainer,
        **settings,
        callbacks=callbacks,
        logger=loggers,
        default_root_dir=run_dir,
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


if __name__ == "__main__":
    main()
