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

from asr.base.text.numbers import NONE, duration, percent
from asr.core.run.events import EventsFile, Progress, Validated
from asr.core.run.names import LOSS_OF, VALID_LOSS_OF, VALID_WER_OF
from asr.core.training.lightning_internals import batches_begun
from asr.core.training.objective import Measure
from asr.core.training.task import LineSums, speed_of

if TYPE_CHECKING:
    from asr.core.training.task import TrainingTask

logger = logging.getLogger(__name__)

LINE_SECONDS = 30  # time between two log lines within an epoch


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
        task = cast("TrainingTask", pl_module)
        rate, measure = task.trainable.rate, task.measure
        shown = {"loss": metrics.get("train/loss"), f"{rate.title}/s": metrics.get(speed_of(rate.name))}
        if f"valid/{measure.name}" in metrics:
            shown[f"valid {measure.title}"] = measure.write(metrics[f"valid/{measure.name}"], 1)
        return {name: value for name, value in shown.items() if value is not None}


class LogLines(Callback):
    """Log a line for each validation, at the end of each epoch and, if there is no bar, every `LINE_SECONDS`.

    Args:
        events: file to which each line is also written as an event.
        within_epochs: whether to log lines within epochs, too; True if there is no bar.
    """

    def __init__(self, events: EventsFile, within_epochs: bool) -> None:
        self._events = events
        self.within_epochs = within_epochs
        self._last = time.monotonic()
        self._score = ""  # result of the last validation
        self._begin: tuple[float, int] | None = None  # time and step at the first batch of this process
        self._validation_begin = 0.0
        self._is_long = True  # whether the last validation took more than `LINE_SECONDS`

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Start the clock of the expected time at the first batch, after the trial and the validation before it."""
        if self._begin is None:
            self._begin = (time.monotonic(), trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Log a line if the last line is older than `LINE_SECONDS`."""
        if self.within_epochs and time.monotonic() - self._last > LINE_SECONDS:
            self._log(trainer, done=False)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Announce the validation if it may be long and no bar shows it."""
        self._validation_begin = time.monotonic()
        if self.within_epochs and self._is_long:
            logger.info("validating %s", _place(trainer))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log a line and write an event."""
        self._last = time.monotonic()
        self._is_long = self._last - self._validation_begin > LINE_SECONDS
        measure, loss, score = _measured(trainer)
        self._score = f"{measure.title} {measure.write(score, 1)}"
        if trainer.is_global_zero:
            finite = [value if math.isfinite(value) else None for value in (loss, score)]
            self._events.append(Validated(trainer.global_step, finite[0], measure.name, finite[1]))
        logger.info("validation %s: %s", _place(trainer), _validation(trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the epoch's line, after its validation; trainer.max_steps may have ended the epoch early."""
        self._log(trainer, done=trainer.is_last_batch)

    def _log(self, trainer: pl.Trainer, done: bool) -> None:
        self._last = time.monotonic()
        task = cast("TrainingTask", trainer.lightning_module)
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        if not trainer.is_global_zero or "train/loss" not in metrics or not task.line.steps:
            return
        line, task.line = task.line, LineSums()
        batch, num_batches = batches_begun(trainer), int(trainer.num_training_batches)
        total_steps = max(trainer.global_step, task.total_steps)
        progress = Progress(trainer.global_step, trainer.current_epoch + 1, batch, num_batches, total_steps)
        rate = task.trainable.rate
        of_epochs = f" of {trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
        texts = [
            f"epoch {progress.epoch}{of_epochs}{' done' if done else ''}",
            f"step {progress.step:,} of {total_steps:,}:"
            f" train loss {line.mean_loss:.3f}{_by_manifest(metrics, LOSS_OF)}",
            f"learning rate {metrics['train/learning_rate']:.2e}",
            self._score,
            f"{metrics[speed_of(rate.name)]:.0f} {rate.title} a second",
            f"{percent(line.clipped_share, 0)} of the steps clipped",
            self._time_left(progress.step, task.total_steps),
        ]
        logger.info(", ".join(filter(None, texts)))
        self._events.append(progress)

    def _time_left(self, step: int, total_steps: int) -> str:
        """Return the expected time to the end of the run, at the speed of this process so far, with validations."""
        begin, first_step = self._begin or (0.0, step)
        left = max(0, total_steps - step)
        if not left or step == first_step:
            return ""
        return f"{duration((time.monotonic() - begin) / (step - first_step) * left)} left"


def _place(trainer: pl.Trainer) -> str:
    return f"at step {trainer.global_step:,}" if trainer.global_step else "before the first step"


def _validation(trainer: pl.Trainer) -> str:
    measure, loss, score = _measured(trainer)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    losses = f"valid loss {f'{loss:.3f}' if math.isfinite(loss) else NONE}{_by_manifest(metrics, VALID_LOSS_OF)}"
    return f"{losses}, {measure.title} {measure.write(score, 1)}{_by_manifest(metrics, VALID_WER_OF, percent)}"


def _by_manifest(metrics: Mapping[str, float], kind: str, write: Callable[[float], str] = "{:.3f}".format) -> str:
    """Return a list of metrics by manifest, in brackets; "" if there are no such metrics."""
    values = [f"{name.removeprefix(kind)} {write(metrics[name])}" for name in metrics if name.startswith(kind)]
    return f" ({', '.join(values)})" if values else ""


def _measured(trainer: pl.Trainer) -> tuple[Measure, float, float]:
    """Return the measure of a validation, and two results of the last one: its loss, and its value."""
    measure = cast("TrainingTask", trainer.lightning_module).measure
    loss, score = (float(trainer.callback_metrics[f"valid/{name}"]) for name in ("loss", measure.name))
    return measure, loss, score
