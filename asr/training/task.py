"""The Lightning module of a recogniser: the loss of a step, validation and logged metrics, but no model code."""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asr.checkpoint.load import CHECKPOINT_KEY, PREFIX
from asr.checkpoint.saved import WER
from asr.data.batch import Batch, Rejected
from asr.data.batch_plan import LESS_MEMORY
from asr.data.seeds import derive_seed
from asr.evaluation.word_errors import ErrorCounts, count_errors, total
from asr.interfaces import Metric, Schedule
from asr.recognition.recognizer import Recognizer
from asr.run.names import HOURS_OF, LOSS_OF, VALID_LOSS_OF, VALID_WER_OF
from asr.run.validation_samples import SamplesFile, ValidationSample
from asr.text.printable import listed
from asr.training.data_module import Stopwatch
from asr.training.distributed import add_up, fail_together, gather
from asr.training.gradients import divide_and_clip
from asr.training.lightning_internals import forget_metric
from asr.training.manifest_sums import ManifestSums, ValidationSums
from asr.training.memory_check import describe
from asr.training.step_sums import StepBatches, StepRecord, StepSums, wait_for
from asr.training.tasks import LineSums, epoch_of, epochs_done, log_step, scheduled
from asr.training.valid_texts import ValidationTexts

STATES = {
    "state_dict",
    "current_model_state",
}  # keys of weights in a checkpoint; with a moving average, the first has the average, the second the trained weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unreadable:
    """The allowed number of unreadable utterances in an epoch, and the number found before the run was resumed.

    Args:
        at_most: number allowed in an epoch, over all processes; a larger number stops the training.
        epoch: epoch in which the run starts or resumes, from 0.
        so_far: number of unreadable utterances found in that epoch before the run was resumed.
    """

    at_most: float
    epoch: int = 0
    so_far: int = 0


class RecognitionTask(pl.LightningModule):
    """Train a recogniser.

    The loss is the sum of the utterances' losses divided by the number of their reference tokens, over all ranks and
    all batches of the optimizer step. Each backward pass adds gradients of sums; the gradients are divided once, before
    clipping.

    An error on one rank is communicated to all ranks, so that all stop together and no rank hangs. On a CPU, errors
    are checked after every step. On other devices each check is a synchronisation, so errors are checked only when a
    step is logged and before a checkpoint is written (`settle`).

    Args:
        recognizer: contains the model to train; decodes the validation set.
        make_optimizer: makes the optimizer from named parameters.
        schedule: schedule of the learning rate.
        total_steps: number of optimizer steps of the whole run, for the schedule.
        seed: seed of dropout.
        unreadable: limit on skipped utterances.
        extra: data stored in a checkpoint with the weights (`checkpoint_extra`).
        faults: folder for batches whose loss is not finite.
        waiting: measures the time that the training process waits for batches.
        samples: ids of the utterances whose hypotheses each validation records, and the file for these hypotheses.
        epoch_hours: hours that each training manifest contributes to an epoch, by the manifest's name.
        valid_manifests: names of the validation manifests.
        metrics: further metrics of validations, by name.
        own_tensors: names of the model's tensors that a checkpoint contains; None: all. The other tensors never change.
    """

    measure: ClassVar[str] = WER

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        make_optimizer: Callable[[Any], Optimizer],
        schedule: Schedule,
        total_steps: int,
        seed: int,
        unreadable: Unreadable,
        extra: Mapping[str, Any],
        faults: Path,
        waiting: Stopwatch,
        samples: SamplesFile,
        epoch_hours: Mapping[str, float],
        valid_manifests: Sequence[str],
        metrics: Mapping[str, Metric],
        own_tensors: Collection[str] | None,
    ) -> None:
        super().__init__()
        self.model = recognizer.model
        self._recognizer = recognizer
        self.skipped = unreadable.so_far  # number of unreadable utterances of this epoch, over all ranks
        self.batch: Batch | None = None  # the current batch
        self._make_optimizer = make_optimizer
        self._schedule = schedule
        self.total_steps = total_steps
        self.line = LineSums()
        self._seed = seed
        self._unreadable = unreadable
        self._extra = extra
        self._faults = faults
        self._waiting = waiting
        self._samples = samples
        self._epoch_hours = epoch_hours
        self._of_manifests = ManifestSums(list(epoch_hours))  # sums since the last log line
        self._valid_manifests = valid_manifests
        self._own = None if own_tensors is None else {f"{PREFIX}{name}" for name in own_tensors}
        self._batches = StepBatches()
        self._unsettled: list[StepRecord] = []
        self._valid = ValidationSums(valid_manifests)
        self._texts = ValidationTexts(metrics)
        self._last_step_time = time.monotonic()

    def too_large(self) -> str:
        """Return the error message for a batch that does not fit into memory."""
        batch = describe(self.batch, self.model.features) if self.batch else "a batch that does not fit"
        return f"a batch must fit into memory; got {batch}. {LESS_MEMORY}."

    def configure_optimizers(self) -> Any:
        """Make the optimizer and the schedule, which is updated after every optimizer step."""
        optimizer = self._make_optimizer(self.model.named_parameters())
        return scheduled(optimizer, self._schedule, self.total_steps, self.trainer)

    def losses(self, batch: Batch) -> Mapping[str, Tensor]:
        """Compute losses by name, with a value per utterance, (B,) each; without utterances, a single zero, (1,)."""
        self.batch = batch
        if len(batch) == 0:
            return {"loss": self._stand_in()}
        encoded = self.model.encode(batch)
        return self.model.head.losses(encoded, batch.targets)

    def on_train_start(self) -> None:
        """Start the clock of the first step, so that the time of the setup does not count."""
        self._last_step_time = time.monotonic()

    def on_train_epoch_start(self) -> None:
        """Reset the count of skipped utterances, except in the epoch that is resumed."""
        if self.current_epoch != self._unreadable.epoch:
            self.skipped = 0

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout with (seed, epoch, batch index, rank), so that a resumed run draws the same masks."""
        torch.manual_seed(derive_seed(self._seed, self.current_epoch, batch_idx, self.global_rank))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum the losses of a batch, and multiply the sum by the numbers of ranks and of accumulated batches.

        The sum is multiplied because torch and Lightning divide by these numbers.
        """
        losses = self.losses(batch)
        self._batches.add(batch, {name: loss.detach() for name, loss in losses.items()})
        return losses["loss"].sum() * (self.trainer.world_size * self.trainer.accumulate_grad_batches)

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Divide the gradients by the step's reference tokens, then clip them; called once per optimizer step."""
        batches, self._batches = self._batches, StepBatches()
        now = time.monotonic()
        mine = batches.sums(self._waiting.take(), now - self._last_step_time, self.model.head.loss_names)
        self._last_step_time = now
        sums = add_up(self.trainer, mine)
        tokens = sums[StepSums._fields.index("tokens")].clamp(min=1)
        norm = divide_and_clip(self.parameters(), tokens, gradient_clip_val, partial(add_up, self.trainer))
        self._unsettled.append(StepRecord(self.current_epoch + 1, self.global_step + 1, batches, sums, norm))
        if answers_at_once(self.device) or self._is_logged(self.global_step + 1):
            *before, (last, last_norm) = self.settle()
            rates = last.together([sums for sums, _ in before])
            self._log_step(rates, last_norm, optimizer.param_groups[0]["lr"])

    def settle(self) -> list[tuple[StepSums, float]]:
        """Synchronise with the device, log utterances skipped since the last call, and stop if a loss is not finite.

        All ranks must call this method.

        Returns:
            The sums and the gradient norm of each step.
        """
        steps, self._unsettled = self._unsettled, []
        if not steps:
            return []
        results = wait_for(steps, self.model.head.loss_names)
        for step, (sums, norm) in zip(steps, results, strict=True):
            if sums.skipped:
                self._skip(step, int(sums.skipped))
            if not math.isfinite(sums.loss) or not math.isfinite(norm):  # these are sums over ranks, so all ranks stop
                self._stop_not_finite(step)
            self.line.add(sums.loss, sums.tokens, norm, self.trainer.gradient_clip_val)
            for batch, losses in step.batches.batches:
                self._of_manifests.add(batch.utterances, losses, batch.token_lengths)
        return results

    def _is_logged(self, step: int) -> bool:
        """Return whether a step is logged: every `log_every_n_steps` steps, and the last of an epoch or of the run."""
        return step % self._log_every == 0 or self.trainer.is_last_batch or step == self.trainer.max_steps

    @property
    def _log_every(self) -> int:
        """Number of optimizer steps from one logged step to the next."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set outside of Trainer's class
        return every

    def _log_step(self, sums: StepSums, norm: float, learning_rate: float) -> None:
        features = self.model.features
        seconds = sums.frames / self.model.head.views * features.hop / features.sample_rate
        log_step(self, self.global_step + 1)  # number of completed steps after this step
        self.log("train/loss", sums.loss / max(sums.tokens, 1), prog_bar=True)
        for name, loss in sums.others.items():
            self.log(f"train/{name}", loss / max(sums.tokens, 1))
        self.log("train/grad_norm", norm)
        self.log("train/learning_rate", learning_rate)
        self.log("train/skipped_utterances", float(self.skipped))
        speed = seconds * self.trainer.world_size / sums.wall_seconds
        self.log("train/audio_seconds_per_second", speed, prog_bar=True)
        self.log("train/padding", sums.padding)
        self.log("train/data_wait", sums.data_wait)
        if (self.global_step + 1) % self._log_every == 0:  # Lightning passes only these steps to the loggers
            self._log_hours()
            for name, rates in self._of_manifests.take(partial(add_up, self.trainer), self.device).items():
                if rates.loss is not None:
                    self.log(f"{LOSS_OF}{name}", rates.loss)
                else:
                    forget_metric(self.trainer, f"{LOSS_OF}{name}")

    def _log_hours(self) -> None:
        """Log the hours trained on from each manifest, if there is more than one."""
        for name in self._of_manifests.names:
            self.log(f"{HOURS_OF}{name}", epochs_done(self.trainer) * self._epoch_hours[name])

    def on_validation_epoch_start(self) -> None:
        """Stop if a loss or gradient so far is not finite; reset the sums of the validation."""
        self.settle()
        self._valid = ValidationSums(self._valid_manifests)
        self._texts.clear()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the errors of a batch with the functions that `asr.evaluate` uses."""
        self.batch = batch
        self._valid.rejected += batch.rejected
        if len(batch) == 0:
            return
        encoded = self.model.encode(batch)
        frame_head = self.model.head.frame_head
        if frame_head is not None:
            log_probs = frame_head.log_probs(encoded.out)
            self._valid.add_frames(log_probs, encoded.lengths)
            encoded = encoded._replace(log_probs=log_probs)
        losses = self.model.head.losses(encoded, batch.targets)
        nbests = self._recognizer.hypotheses(encoded)
        hypotheses = [self._recognizer.text(best) for best, *_ in nbests]
        references = [utterance.text for utterance in batch.utterances]  # normalised when the manifest was read
        scored = [[self.model.scored_by(text) for text in texts] for texts in (references, hypotheses)]
        self._texts.add([utterance.id for utterance in batch.utterances], *scored)
        errors = [count_errors(*pair) for pair in zip(*scored, strict=True)]
        self._valid.add(total(errors), losses["loss"], batch.token_lengths)
        self._valid.of_manifests.add(batch.utterances, losses["loss"], batch.token_lengths, errors)
        step = self.global_step
        self._valid.samples += [
            ValidationSample(step, epoch_of(self, step), utterance.id, *texts)
            for utterance, *texts in zip(batch.utterances, references, hypotheses, strict=True)
            if utterance.id in self._samples.ids
        ]

    def on_validation_epoch_end(self) -> None:
        """Log WER, losses and blank ratio: sums over all ranks, divided once."""
        sums = add_up(self.trainer, self._valid.as_tensor(self.device)).tolist()
        counts = ErrorCounts(*(round(value) for value in sums[:5]))
        loss, tokens, blanks, frames, skipped = sums[5:]
        if skipped:
            for reason, utterance_id in gather(self.trainer, _named(self._valid.rejected)):
                logger.warning("validation: skipped %r: %s", utterance_id, reason)
        if counts.utterances == 0:
            fail_together(
                self.trainer,
                "validation must have a readable utterance; all were skipped, see the warnings above.",
            )
        samples = gather(self.trainer, self._valid.samples)
        if self.trainer.is_global_zero:
            self._samples.append(samples)
        log_step(self, self.global_step)
        # Without words there is no WER: early stopping and checkpoint.select would take 0 errors for the best model.
        self.log("valid/wer", counts.rate if counts.reference_length else math.nan, prog_bar=True)
        self.log("valid/loss", loss / max(1, tokens))
        if frames:
            self.log("valid/blank_ratio", blanks / frames)
        for name, number in self._texts.take(self.trainer).items():
            self.log(f"valid/{name}", number)
        self._log_hours()
        for name, rates in self._valid.of_manifests.take(partial(add_up, self.trainer), self.device).items():
            if rates.loss is not None:
                self.log(f"{VALID_LOSS_OF}{name}", rates.loss)
            if rates.wer is not None:
                self.log(f"{VALID_WER_OF}{name}", rates.wer)

    def on_validation_end(self) -> None:
        """Restart the clock of the step, so that the times of the validation and of its checkpoint do not count."""
        self._last_step_time = time.monotonic()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the config and the tokenizer, which recognition needs; remove tensors that never change."""
        checkpoint[CHECKPOINT_KEY] = self._extra
        if self._own is not None:
            for key in STATES & checkpoint.keys():
                checkpoint[key] = {name: tensor for name, tensor in checkpoint[key].items() if name in self._own}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the tensors that the checkpoint does not contain; the model already has their values."""
        if self._own is not None:
            frozen = {name: tensor for name, tensor in self.state_dict().items() if name not in self._own}
            for key in STATES & checkpoint.keys():
                checkpoint[key] = frozen | checkpoint[key]

    def _stand_in(self) -> Tensor:
        """Return the zero loss, (1,), of a batch without utterances; it takes part in all collective operations."""
        model = self.model
        features = torch.zeros(1, model.encoder.stride, model.features.dim, device=self.device)
        unknown = {name: ids.to(self.device) for name, ids in model.labels.conditions([{}]).items()}
        encoded = model(features, torch.zeros(1, dtype=torch.int64, device=self.device), unknown)
        idle = [weight.sum() for weight in cast(nn.Module, model.head).parameters() if weight.requires_grad]
        return (encoded.out.sum(dim=(1, 2)) + sum(idle)) * 0.0

    def _skip(self, step: StepRecord, count: int) -> None:
        """Count and log the skipped utterances of a step; stop if the epoch has more than allowed."""
        epoch = step.epoch
        names = gather(self.trainer, _named(step.batches.rejected))
        for reason, utterance_id in names:
            logger.warning("epoch %d: skipped %r: %s", epoch, utterance_id, reason)
        self.skipped += count
        if self.skipped > self._unreadable.at_most:
            must = f"an epoch must have at most {self._unreadable.at_most:g} unreadable utterances"
            given = f"(data.max_bad_fraction); got {self.skipped} in epoch {epoch}"
            last = f"the last is {names[-1][1]!r}: {names[-1][0].rstrip('.')}"
            fail_together(self.trainer, f"{must} {given}; {last}. Restore the files, or raise data.max_bad_fraction.")

    def _stop_not_finite(self, step: StepRecord) -> None:
        """Name the utterances whose loss is not finite, save their batches, and stop."""
        step.batches.keep(self._faults, f"epoch={step.epoch}-step={step.number}-rank={self.global_rank}")
        ids = gather(self.trainer, step.batches.not_finite())
        problem = f"the loss is not finite for {len(ids)} utterances: {listed(ids)}"
        if not ids:
            problem = "the losses are finite, but the gradient is not"
        where = f"in epoch {step.epoch}, step {step.number}"
        hint = "Try a lower optimizer.lr, more schedule.warmup_steps, or trainer.precision=32-true"
        fail_together(
            self.trainer,
            f"loss and gradient must be finite; {where}, {problem}. {hint}; the batches are in {self._faults}.",
        )


def answers_at_once(device: torch.device) -> bool:
    """Return whether results are available without a synchronisation, as on a CPU, which computes synchronously."""
    return device.type == "cpu"


def _named(rejected: list[Rejected]) -> list[tuple[str, str]]:
    return [(example.reason, example.utterance.id) for example in rejected]
