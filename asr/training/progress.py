"""How far a training run is: a bar on a terminal, a line now and then elsewhere and in the log, and events."""

import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, RichProgressBar

from asr.run.events import EventsFile, Progress, Validated
from asr.text.numbers import percent
from asr.training.lightning_internals import batches_begun

logger = logging.getLogger(__name__)

LINE_SECONDS = 30  # between two lines within an epoch


def progress_callbacks(run_dir: Path) -> list[Callback]:
    """Return the bar, if there is a terminal to draw it on, and the log lines, which are events, too."""
    bar = [Bar(console_kwargs={"stderr": True})] if sys.stderr.isatty() else []
    return [*bar, LogLines(EventsFile(run_dir), within_epochs=not bar)]


class Bar(RichProgressBar):
    """A bar for each epoch, with loss, speed and the last validation's WER."""

    def _get_train_description(self, current_epoch: int) -> str:
        return f"epoch {current_epoch + 1}"

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Lightning's hook; names that leave room for the bar."""
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        shown = {"loss": metrics.get("train/loss"), "audio s/s": metrics.get("train/audio_seconds_per_second")}
        if "valid/wer" in metrics:
            shown["valid WER"] = percent(metrics["valid/wer"])
        return {name: value for name, value in shown.items() if value is not None}


class LogLines(Callback):
    """Log a line at the end of each epoch, and every `LINE_SECONDS` where no bar shows that the run is alive.

    Args:
        events: where each line is told as data.
        within_epochs: whether there is no bar.
    """

    def __init__(self, events: EventsFile, within_epochs: bool) -> None:
        self._events = events
        self.within_epochs = within_epochs
        self._last = time.monotonic()
        self._validated = False  # since the last line of an epoch's end

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Lightning's hook."""
        if self.within_epochs and time.monotonic() - self._last > LINE_SECONDS:
            self._log(trainer, validated=False, done=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook; before the first step there is no epoch whose line would tell of it."""
        loss, wer = (float(trainer.callback_metrics[name]) for name in ("valid/loss", "valid/wer"))
        if trainer.is_global_zero:
            self._events.append(Validated(trainer.global_step, loss, wer if math.isfinite(wer) else None))
        if trainer.global_step == 0:
            logger.info("before the first step: %s", _validation(trainer))
        else:
            self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook, after the epoch's validation, if it has one; trainer.max_steps may end it earlier."""
        self._log(trainer, self._validated, done=trainer.is_last_batch)
        self._validated = False

    def _log(self, trainer: pl.Trainer, validated: bool, done: bool) -> None:
        self._last = time.monotonic()
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if trainer.is_global_zero and "train/loss" in metrics:
            batch, num_batches = batches_begun(trainer), int(trainer.num_training_batches)
            progress = Progress(trainer.global_step, trainer.current_epoch + 1, batch, num_batches)
            where = "done" if done else f"batch {batch} of {num_batches}"
            loss, speed = metrics["train/loss"], metrics["train/audio_seconds_per_second"]
            text = f"train loss {loss:.3f} at this step, {speed:.0f} s of audio a second"
            if validated:
                text += f"; {_validation(trainer)}"
            logger.info("epoch %d %s, step %d: %s", progress.epoch, where, progress.step, text)
            self._events.append(progress)


def _validation(trainer: pl.Trainer) -> str:
    loss, wer = (float(trainer.callback_metrics[name]) for name in ("valid/loss", "valid/wer"))
    return f"valid loss {loss:.3f}, WER {percent(wer)}"
