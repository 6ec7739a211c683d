"""The Lightning module: steps, validations and logged metrics of any objective, but no model code."""

import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from asr.base.system.devices import answers_at_once
from asr.base.system.seeds import derive_seed
from asr.base.text.printable import listed
from asr.core import build
from asr.core.checkpoint.load import CHECKPOINT_KEY, PREFIX
from asr.core.run.names import FAULTS
from asr.core.training.distributed import TrainerProcesses, add_up, fail_together, gather
from asr.core.training.gradients import divide_and_clip
from asr.core.training.lightning_internals import batches_begun, forget_metric
from asr.core.training.losses import Losses
from asr.core.training.objective import Measure, Trainable, TrainedBatch, Validation, described
from asr.core.training.step_sums import StepBatches, StepRecord, StepSums, wait_for
from asr.interfaces import FollowsTraining, Moment

if TYPE_CHECKING:
    from asr.core.run.run import Run
    from asr.core.training.data_module import TrainingData

STATES = {
    "state_dict",
    "current_model_state",
}  # keys of weights in a checkpoint; with a moving average, the first has the average, the second the trained weights

logger = logging.getLogger(__name__)


@dataclass
class LineSums:
    """Sums over the optimizer steps since the last line of the log, over all ranks.

    Args:
        loss: sum of the losses.
        units: number of units, such as tokens, to which the losses belong.
        steps: number of steps.
        clipped: number of steps whose gradient was clipped.
    """

    loss: float = 0.0
    units: float = 0.0
    steps: int = 0
    clipped: int = 0

    def add(self, loss: float, units: float, norm: float, max_norm: float | None) -> None:
        """Add a step.

        Args:
            loss: sum of the losses.
            units: number of units.
            norm: norm of the gradient before clipping.
            max_norm: maximum norm; None: no limit.
        """
        self.loss, self.units, self.steps = self.loss + loss, self.units + units, self.steps + 1
        self.clipped += bool(max_norm) and norm > (max_norm or 0.0)

    @property
    def mean_loss(self) -> float:
        """Loss per unit."""
        return self.loss / max(1.0, self.units)

    @property
    def clipped_share(self) -> float:
        """Fraction of the steps whose gradient was clipped."""
        return self.clipped / self.steps if self.steps else 0.0


class TrainingTask(pl.LightningModule):
    """Train what an objective has built. Steps log `train/loss`; validations log `valid/loss` and the measure.

    The loss is the sum of the examples' losses divided by their number of units, over all ranks and all batches of the
    optimizer step. Each backward pass adds gradients of sums; the gradients are divided once, before clipping.

    An error on one rank is communicated to all ranks, so that all stop together and no rank hangs. On a CPU, errors
    are checked after every step. On other devices each check is a synchronisation, so errors are checked only when a
    step is logged and before a checkpoint is written (`settle`).

    Args:
        trainable: the model with its losses.
        measure: metric of validations, which selects checkpoints.
        run: the run, with the components of optimizer and schedule, and the seed of dropout.
        total_steps: number of optimizer steps of the whole run, for the schedule.
    """

    def __init__(self, trainable: Trainable, measure: Measure, run: "Run[Any]", total_steps: int) -> None:
        super().__init__()
        self.trainable = trainable
        self.model = trainable.model
        self.measure = measure
        self.skipped = run.position.skipped  # number of unreadable utterances of this epoch, over all ranks
        self.batch: TrainedBatch | None = None  # the current batch
        self._run = run
        self._schedule = build.build_schedule(run.settings.components)
        self.total_steps = total_steps
        self.line = LineSums()  # sums over the settled steps since the last line of the log, which replaces them
        own = trainable.own_tensors
        self._own = None if own is None else {f"{PREFIX}{name}" for name in own}
        self._batches = StepBatches()
        self._unsettled: list[StepRecord] = []
        self._validation: Validation | None = None
        self._followers: list[FollowsTraining] = []
        self._last_step_time = time.monotonic()

    def too_large(self) -> str:
        """Return the error message for a batch that does not fit into memory."""
        return self.trainable.too_large(self.batch)

    def configure_optimizers(self) -> Any:
        """Make the optimizer and the schedule, which is updated after every optimizer step."""
        optimizer = build.build_optimizer(self._run.settings.components, self.model, self.trainable.depths)

        def factor(step: int) -> float:
            return self._schedule(self._moment(step))

        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}

    def losses(self, batch: TrainedBatch) -> Losses:
        """Compute losses by name, with a value per example, (B,) each; without examples, a single zero, (1,)."""
        self.batch = batch
        if len(batch) == 0:
            idle = self.trainable.idle()
            return Losses({"loss": idle}, torch.zeros(0, dtype=torch.int64, device=idle.device))
        return self.trainable.losses(batch)

    def on_train_start(self) -> None:
        """Find the modules that follow the run, and start the clock of the first step after the setup."""
        self._followers = [module for module in self.model.modules() if isinstance(module, FollowsTraining)]
        self._last_step_time = time.monotonic()

    def on_train_epoch_start(self) -> None:
        """Reset the count of skipped utterances, except in the epoch that is resumed."""
        if self.current_epoch != self._run.position.epoch:
            self.skipped = 0

    def on_train_batch_start(self, batch: TrainedBatch, batch_idx: int) -> None:
        """Seed the losses with (seed, epoch, batch index, rank), so that a resumed run draws the same numbers."""
        torch.manual_seed(derive_seed(self._run.settings.seed, self.current_epoch, batch_idx, self.global_rank))
        for module in self._followers:
            module.on_moment(self._moment(self.global_step))

    def training_step(self, batch: TrainedBatch, batch_idx: int) -> Tensor:
        """Sum the losses of a batch, and multiply the sum by the numbers of ranks and of accumulated batches.

        The sum is multiplied because torch and Lightning divide by these numbers.
        """
        losses = self.losses(batch)
        self._batches.add(batch, losses)
        return losses.loss.sum() * (self.trainer.world_size * self.trainer.accumulate_grad_batches)

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Divide the gradients by the step's units, then clip them; called once per optimizer step."""
        batches, self._batches = self._batches, StepBatches()
        now = time.monotonic()
        waited = self._data.waiting.take()
        mine = batches.sums(waited, now - self._last_step_time, self.trainable.loss_names)
        self._last_step_time = now
        sums = add_up(self.trainer, mine)
        units = sums[StepSums._fields.index("units")].clamp(min=1)
        norm = divide_and_clip(self.parameters(), units, gradient_clip_val, partial(add_up, self.trainer))
        self._unsettled.append(StepRecord(self.current_epoch + 1, self.global_step + 1, batches, sums, norm))
        if answers_at_once(self.device) or self._is_logged(self.global_step + 1):
            *before, (last, last_norm) = self.settle()
            rates = last.together([sums for sums, _ in before])
            self._log_step(rates, last_norm, _learning_rate(optimizer))

    def settle(self) -> list[tuple[StepSums, float]]:
        """Synchronise with the device, log utterances skipped since the last call, and stop if a loss is not finite.

        All ranks must call this method.

        Returns:
            The sums and the gradient norm of each step.
        """
        steps, self._unsettled = self._unsettled, []
        if not steps:
            return []
        results = wait_for(steps, self.trainable.loss_names)
        for step, (sums, norm) in zip(steps, results, strict=True):
            if sums.skipped:
                self._skip(step, int(sums.skipped))
            if not math.isfinite(sums.loss) or not math.isfinite(norm):  # these are sums over ranks, so all ranks stop
                self._stop_not_finite(step)
            self.line.add(sums.loss, sums.units, norm, self.trainer.gradient_clip_val)
            for batch, losses in step.batches.batches:
                self._data.add_losses(batch, losses)
        return results

    def _moment(self, step: int) -> Moment:
        return Moment(step, self.total_steps, epochs_done(self.trainer))

    @property
    def _data(self) -> "TrainingData":
        return cast("TrainingData", self.trainer.datamodule)  # type: ignore[attr-defined]  # set outside of Trainer's class

    def _is_logged(self, step: int) -> bool:
        """Return whether a step is logged: every `log_every_n_steps` steps, and the last of an epoch or of the run."""
        return step % self._log_every == 0 or self.trainer.is_last_batch or step == self.trainer.max_steps

    @property
    def _log_every(self) -> int:
        """Number of optimizer steps from one logged step to the next."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set outside of Trainer's class
        return every

    def _log_step(self, sums: StepSums, norm: float, learning_rate: float) -> None:
        rate = self.trainable.rate
        self._log_position(self.global_step + 1)  # number of completed steps after this step
        self.log("train/loss", sums.loss / max(sums.units, 1), prog_bar=True)
        for name, loss in sums.others.items():
            self.log(f"train/{name}", loss / max(sums.units, 1))
        self.log("train/grad_norm", norm)
        self.log("train/learning_rate", learning_rate)
        self.log("train/skipped_utterances", float(self.skipped))
        speed = sums.size * rate.per_element * self.trainer.world_size / sums.wall_seconds
        self.log(speed_of(rate.name), speed, prog_bar=True)
        self.log("train/padding", sums.padding)
        self.log("train/data_wait", sums.data_wait)
        if (self.global_step + 1) % self._log_every == 0:  # Lightning passes only these steps to the loggers
            self._log_hours()
            for name, loss_of in self._data.losses_by_manifest(partial(add_up, self.trainer), self.device).items():
                if loss_of is not None:
                    self.log(name, loss_of)
                else:
                    forget_metric(self.trainer, name)

    def _log_hours(self) -> None:
        for name, hours in self._data.hours_by_manifest(epochs_done(self.trainer)).items():
            self.log(name, hours)

    def _log_position(self, step: int) -> None:
        """Log epoch and number of completed steps, as in the names of checkpoints; Lightning counts from 0."""
        self.log("step", float(step))
        self.log("epoch", float(self._epoch_of(step)))

    def _epoch_of(self, step: int) -> int:
        """Return the current epoch, from 1; 0 before the first optimizer step."""
        return self.current_epoch + 1 if step else 0

    def on_validation_epoch_start(self) -> None:
        """Stop if a loss or gradient so far is not finite; begin the sums of the validation."""
        self.settle()
        self._validation = self.trainable.validation(self.global_step, self._epoch_of(self.global_step))

    def validation_step(self, batch: TrainedBatch, batch_idx: int) -> None:
        """Add a batch to the validation."""
        self.batch = batch
        assert self._validation is not None
        self._validation.add(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics over all ranks."""
        assert self._validation is not None
        metrics = self._validation.metrics(TrainerProcesses(self.trainer))
        self._validation = None
        self._log_position(self.global_step)
        for name, value in metrics.items():
            self.log(f"valid/{name}", value, prog_bar=name == self.measure.name)
        self._log_hours()

    def on_validation_end(self) -> None:
        """Restart the clock of the step, so that the times of the validation and of its checkpoint do not count."""
        self._last_step_time = time.monotonic()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the data that a bundle needs besides the weights; remove tensors that never change."""
        checkpoint[CHECKPOINT_KEY] = self._run.extra
        if self._own is not None:
            for key in STATES & checkpoint.keys():
                checkpoint[key] = {name: tensor for name, tensor in checkpoint[key].items() if name in self._own}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the tensors that the checkpoint does not contain; the model already has their values."""
        if self._own is not None:
            frozen = {name: tensor for name, tensor in self.state_dict().items() if name not in self._own}
            for key in STATES & checkpoint.keys():
                checkpoint[key] = frozen | checkpoint[key]

    def _skip(self, step: StepRecord, count: int) -> None:
        """Count and log the skipped utterances of a step; stop if the epoch has more than allowed."""
        epoch = step.epoch
        names = gather(self.trainer, described(step.batches.rejected))
        for reason, utterance_id in names:
            logger.warning("epoch %d: skipped %r: %s", epoch, utterance_id, reason)
        self.skipped += count
        if self.skipped > (at_most := self._data.max_unreadable):
            must = f"an epoch must have at most {at_most:g} unreadable utterances"
            given = f"(data.max_bad_fraction); got {self.skipped} in epoch {epoch}"
            last = f"the last is {names[-1][1]!r}: {names[-1][0].rstrip('.')}"
            fail_together(self.trainer, f"{must} {given}; {last}. Restore the files, or raise data.max_bad_fraction.")

    def _stop_not_finite(self, step: StepRecord) -> None:
        """Name the examples whose loss is not finite, save their batches, and stop."""
        faults = self._run.dir / FAULTS
        step.batches.keep(faults, f"epoch={step.epoch}-step={step.number}-rank={self.global_rank}")
        ids = gather(self.trainer, step.batches.not_finite())
        problem = f"the loss is not finite for {len(ids)} examples: {listed(ids)}"
        if not ids:
            problem = "the losses are finite, but the gradient is not"
        where = f"in epoch {step.epoch}, step {step.number}"
        hint = "Try a lower optimizer.lr, more schedule.warmup_steps, or trainer.precision=32-true"
        fail_together(
            self.trainer,
            f"loss and gradient must be finite; {where}, {problem}. {hint}; the batches are in {faults}.",
        )


def _learning_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of weights with the rate optimizer.lr, even if no such weight is trained."""
    group = optimizer.param_groups[0]
    planned: float = group["initial_lr"]
    rate: float = group["lr"]
    return rate * (optimizer.defaults.get("lr", planned) / planned) if planned else rate


def speed_of(rate: str) -> str:
    """Return the metric of a training's speed, in units of this name a second."""
    return f"train/{rate}_per_second"


def epochs_done(trainer: pl.Trainer) -> float:
    """Return the number of passes over the training set so far, including the fraction of the current pass."""
    epochs = trainer.datamodule.epochs  # type: ignore[attr-defined]  # a TrainingData
    done: float = epochs.done(trainer.current_epoch, trainer.world_size, batches_begun(trainer))
    return done
