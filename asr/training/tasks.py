"""Interfaces of the Lightning modules and data modules; what the tasks of recognisers and language models share."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import lightning.pytorch as pl
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from asr.data.epoch_plan import Epochs
from asr.interfaces import Moment, Schedule
from asr.training.lightning_internals import batches_begun


@dataclass
class LineSums:
    """Sums over the optimizer steps since the last line of the log, over all ranks.

    Args:
        loss: sum of the losses.
        tokens: number of tokens to which the losses belong.
        steps: number of steps.
        clipped: number of steps whose gradient was clipped.
    """

    loss: float = 0.0
    tokens: float = 0.0
    steps: int = 0
    clipped: int = 0

    def add(self, loss: float, tokens: float, norm: float, max_norm: float | None) -> None:
        """Add a step.

        Args:
            loss: sum of the losses.
            tokens: number of tokens.
            norm: norm of the gradient before clipping.
            max_norm: maximum norm; None: no limit.
        """
        self.loss, self.tokens, self.steps = self.loss + loss, self.tokens + tokens, self.steps + 1
        self.clipped += bool(max_norm) and norm > (max_norm or 0.0)

    @property
    def mean_loss(self) -> float:
        """Loss per token."""
        return self.loss / max(1.0, self.tokens)

    @property
    def clipped_share(self) -> float:
        """Fraction of the steps whose gradient was clipped."""
        return self.clipped / self.steps if self.steps else 0.0


class TrainingTask(Protocol):
    """A Lightning module to train.

    Its steps log `train/loss`; its validations log `valid/loss` and `valid/<measure>`.
    """

    measure: ClassVar[str]  # metric of validations, which selects checkpoints; lower is better
    skipped: int  # number of unreadable utterances of this epoch, over all ranks

    total_steps: int  # planned number of optimizer steps of the whole run
    line: LineSums  # sums over the settled steps since the last line of the log, which replaces them

    def settle(self) -> Any:
        """Synchronise with the device; stop if a loss or gradient since the last call is not finite."""

    def too_large(self) -> str:
        """Return the error message for a batch that does not fit into memory."""


class TrainingData(Protocol):
    """A Lightning data module to train on."""

    epochs: Epochs  # epochs of the run, which give the run's position to checkpoints and to the schedule


def scheduled(optimizer: Optimizer, schedule: Schedule, total_steps: int, trainer: pl.Trainer) -> dict[str, Any]:
    """Return the optimizer and its learning-rate schedule in the form that Lightning expects.

    Args:
        optimizer: optimizer whose learning rate is multiplied by the schedule's factor.
        schedule: learning-rate schedule of the run.
        total_steps: number of optimizer steps of the whole run.
        trainer: trainer of the run, whose data module has `epochs` (`TrainingData`).
    """

    def factor(step: int) -> float:
        return schedule(Moment(step, total_steps, epochs_done(trainer)))

    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}


def epochs_done(trainer: pl.Trainer) -> float:
    """Return the number of passes over the training set so far, including the fraction of the current pass."""
    epochs = trainer.datamodule.epochs  # type: ignore[attr-defined]  # a TrainingData
    done: float = epochs.done(trainer.current_epoch, trainer.world_size, batches_begun(trainer))
    return done


def epoch_of(task: pl.LightningModule, step: int) -> int:
    """Return the current epoch, from 1; 0 before the first optimizer step."""
    return task.current_epoch + 1 if step else 0


def log_step(task: pl.LightningModule, step: int) -> None:
    """Log the epoch and the number of completed steps, as in the names of checkpoints; Lightning counts from 0."""
    task.log("step", float(step))
    task.log("epoch", float(epoch_of(task, step)))
