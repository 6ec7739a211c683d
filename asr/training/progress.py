"""Progress of a training run, shown as a bar on a terminal, otherwise as log lines, and written as events."""

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, RichProgressBar

from asr.checkpoint.saved import WER
from asr.evaluation.perplexity import written
from asr.run.events import EventsFile, Progress, Validated
from asr.run.names import LOSS_OF, VALID_LOSS_OF, VALID_WER_OF
from asr.text.numbers import percent
from asr.training.lightning_internals import batches_begun

if TYPE_CHECKING:
    from asr.training.tasks import TrainingTask

logger = logging.getLogger(__name__)

LINE_SECONDS = 30  # time between two log lines within an epoch
AUDIO, TOKENS = "train/audio_seconds_per_second", "train/tokens_per_second"  # a task logs one of the two


def progress_callbacks(run_dir: Path) -> list[Callback]:
    """Return the progress bar, if stderr is a terminal, and the callback that writes log lines and events."""
    bar = [Bar(console_kwargs={"stderr": True})] if sys.stderr.isatty() else []
    return [*bar, LogLines(EventsFile(run_dir), within_epochs=not bar)]


class Bar(RichProgressBar):
    """A bar for each epoch, with loss, speed and the last validation's score."""

    def _get_train_description(self, current_epoch: int) -> str:
        return f"epoch {current_epoch + 1}"

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Return the metrics shown beside the bar, under short names."""
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        shown = {"loss": metrics.get("train/loss"), "audio s/s": metrics.get(AUDIO), "tokens/s": metrics.get(TOKENS)}
        measure = cast("TrainingTask", pl_module).measure
        if f"valid/{measure}" in metrics:
            name, value = scored(measure, metrics[f"valid/{measure}"])
            shown[f"valid {name}"] = value
        return {name: value for name, value in shown.items() if value is not None}


class LogLines(Callback):
    """Log a line at the end of each epoch and, if there is no bar, every `LINE_SECONDS`.

    Args:
        events: file to which each line is also written as an event.
        within_epochs: whether to log lines within epochs, too; True if there is no bar.
    """

    def __init__(self, events: EventsFile, within_epochs: bool) -> None:
        self._events = events
        self.within_epochs = within_epochs
        self._last = time.monotonic()
        self._validated = False  # whether a validation ran since the last line at the end of an epoch

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Log a line if the last line is older than `LINE_SECONDS`."""
        if self.within_epochs and time.monotonic() - self._last > LINE_SECONDS:
            self._log(trainer, validated=False, done=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write an event; before the first step, also log a line. Later validations are part of their epoch's line."""
        if trainer.is_global_zero:
            measure, loss, score = _measured(trainer)
            finite = score if math.isfinite(score) else None
            self._events.append(Validated(trainer.global_step, loss, **{"wer": None, measure: finite}))
        if trainer.global_step == 0:
            logger.info("before the first step: %s", _validation(trainer))
        else:
            self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the epoch's line, after its validation; trainer.max_steps may have ended the epoch early."""
        self._log(trainer, self._validated, done=trainer.is_last_batch)
        self._validated = False

    def _log(self, trainer: pl.Trainer, validated: bool, done: bool) -> None:
        self._last = time.monotonic()
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if trainer.is_global_zero and "train/loss" in metrics:
            batch, num_batches = batches_begun(trainer), int(trainer.num_training_batches)
            progress = Progress(trainer.global_step, trainer.current_epoch + 1, batch, num_batches)
            where = "done" if done else f"batch {batch} of {num_batches}"
            speed = f"{metrics[AUDIO]:.0f} s of audio" if AUDIO in metrics else f"{metrics[TOKENS]:.0f} tokens"
            recently = _by_manifest(metrics, LOSS_OF, beginning="recently ")
            text = f"train loss {metrics['train/loss']:.3f} at this step{recently}, {speed} a second"
            if validated:
                text += f"; {_validation(trainer)}"
            logger.info("epoch %d %s, step %d: %s", progress.epoch, where, progress.step, text)
            self._events.append(progress)


def scored(measure: str, score: float, digits: int = 1) -> tuple[str, str]:
    """Return the name of a validation's metric and its value, formatted for the log."""
    return ("WER", percent(score, digits)) if measure == WER else (f"{measure} per word", written(score, digits))


def _validation(trainer: pl.Trainer) -> str:
    measure, loss, score = _measured(trainer)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    losses = f"valid loss {loss:.3f}{_by_manifest(metrics, VALID_LOSS_OF)}"
    scores = " ".join(scored(measure, score))
    return f"{losses}, {scores}{_by_manifest(metrics, VALID_WER_OF, percent)}"


def _by_manifest(
    metrics: Mapping[str, float], kind: str, write: Callable[[float], str] = "{:.3f}".format, beginning: str = ""
) -> str:
    """Return a list of metrics by manifest, in brackets; "" if there are no such metrics.

    Args:
        metrics: metrics, by name.
        kind: prefix of the metrics' names; the rest of a name is the manifest's name.
        write: formats a value.
        beginning: text at the start of the list.
    """
    values = [f"{name.removeprefix(kind)} {write(metrics[name])}" for name in metrics if name.startswith(kind)]
    return f" ({beginning}{', '.join(values)})" if values else ""


def _measured(trainer: pl.Trainer) -> tuple[str, float, float]:
    """Return three results of the last validation: the metric's name, the loss, and the metric's value."""
    measure = cast("TrainingTask", trainer.lightning_module).measure
    loss, score = (float(trainer.callback_metrics[f"valid/{name}"]) for name in ("loss", measure))
    return measure, loss, score
