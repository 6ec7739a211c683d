"""The position of a training run, for its schedule and its logs."""

from typing import Any

import lightning.pytorch as pl
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from asr.interfaces import Moment, Schedule
from asr.training.lightning_internals import batches_begun


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


def log_place(task: pl.LightningModule, step: int) -> None:
    """Log the epoch and the number of completed steps, as in the names of checkpoints; Lightning counts from 0."""
    task.log("step", float(step))
    task.log("epoch", float(epoch_of(task, step)))
