"""Where a training is: for its schedule, and for its logs."""

from typing import Any

import lightning.pytorch as pl
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from asr.interfaces import Moment, Schedule
from asr.training.lightning_internals import batches_begun


def scheduled(optimizer: Optimizer, schedule: Schedule, total_steps: int, trainer: pl.Trainer) -> dict[str, Any]:
    """Make what Lightning's `configure_optimizers` returns.

    Args:
        optimizer: whose learning rate is multiplied by the schedule's factor.
        schedule: of the run.
        total_steps: optimizer steps of the whole run.
        trainer: that trains; its data module has `epochs` (`TrainingData`).
    """

    def factor(step: int) -> float:
        return schedule(Moment(step, total_steps, epochs_done(trainer)))

    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}


def epochs_done(trainer: pl.Trainer) -> float:
    """Count the passes over the training set that are done, and the part of the present one that is done."""
    epochs = trainer.datamodule.epochs  # type: ignore[attr-defined]  # of TrainingData
    done: float = epochs.done(trainer.current_epoch, trainer.world_size, batches_begun(trainer))
    return done


def epoch_of(task: pl.LightningModule, step: int) -> int:
    """Return the epoch in which this number of optimizer steps was reached, from 1; 0 before the first step."""
    return task.current_epoch + 1 if step else 0


def log_place(task: pl.LightningModule, step: int) -> None:
    """Number what is logged by the steps that are done, as checkpoints are; Lightning would begin at 0."""
    task.log("step", float(step))
    task.log("epoch", float(epoch_of(task, step)))
