"""The Lightning module: what a step computes, and what is logged. No model code."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from asr.checkpoint import CHECKPOINT_KEY
from asr.data.batch import Batch
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Schedule
from asr.lengths import padding_mask
from asr.recognizer import Recognizer
from asr.score import ErrorCounts, count_errors, total
from asr.seeds import derive_seed

logger = logging.getLogger(__name__)


class RecognitionTask(pl.LightningModule):
    """Train a recogniser.

    The loss is the sum of the utterances' losses over the number of their reference tokens, over all ranks and the
    whole accumulation window: each backward pass adds up gradients of sums, which are divided once, before clipping.

    Args:
        recognizer: what is trained.
        make_optimizer: parameters to optimizer.
        schedule: of the learning rate.
        total_steps: optimizer steps of the whole run, for the schedule.
        seed: of dropout.
        extra: what a checkpoint keeps beside the weights (`checkpoint_extra`).
    """

    def __init__(
        self,
        recognizer: Recognizer,
        make_optimizer: Callable[[Any], torch.optim.Optimizer],
        schedule: Schedule,
        total_steps: int,
        seed: int,
        extra: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.recognizer = recognizer
        self._make_optimizer = make_optimizer
        self._schedule = schedule
        self._total_steps = total_steps
        self._seed = seed
        self._extra = extra
        self._window = _WindowSums()
        self._valid = _ValidationSums()

    def configure_optimizers(self) -> Any:
        """Lightning's hook; the schedule moves with every step."""
        optimizer = self._make_optimizer(self.parameters())
        schedule, total_steps = self._schedule, self._total_steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Lightning's hook; dropout is a function of where the run is, so that a resumed run draws the same."""
        torch.manual_seed(derive_seed(self._seed, self.current_epoch, batch_idx, self.global_rank))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Sum the losses of a batch, scaled so that DDP's mean and Lightning's accumulation give the sum again."""
        self._report(batch, f"epoch {self.current_epoch + 1}")
        if len(batch) == 0:
            return self._nothing(batch)
        log_probs, lengths = self.recognizer(batch.features, batch.feature_lengths)
        losses = self.recognizer.head.losses(log_probs, lengths, batch.tokens, batch.token_lengths)
        self._check_finite(losses, batch)
        loss = losses.sum()
        seconds = batch.feature_lengths.sum() * self.recognizer.features.frame_shift_seconds
        self._window.add(loss.detach(), batch.token_lengths.sum(), seconds)
        return loss * (self.trainer.world_size * self.trainer.accumulate_grad_batches)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's hook, once an optimizer step: divide the gradients by the tokens of the window, then clip."""
        loss, tokens, seconds = self.trainer.strategy.reduce(self._window.take(), reduce_op="sum")
        tokens = tokens.clamp(min=1)
        parameters = [parameter for parameter in self.parameters() if parameter.grad is not None]
        for parameter in parameters:
            parameter.grad /= tokens
        norm = clip_grad_norm_(parameters, gradient_clip_val or float("inf"))
        self.log("train/loss", loss / tokens, prog_bar=True)
        self.log("train/grad_norm", norm)
        self.log("train/learning_rate", optimizer.param_groups[0]["lr"])
        self.log("train/audio_seconds_per_second", self._window.rate(float(seconds)), prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        """Lightning's hook."""
        self._valid = _ValidationSums()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the errors of a batch, by the same functions as `evaluate`."""
        self._report(batch, "validation")
        if len(batch) == 0:
            return
        log_probs, lengths = self.recognizer(batch.features, batch.feature_lengths)
        losses = self.recognizer.head.losses(log_probs, lengths, batch.tokens, batch.token_lengths)
        hypotheses = self.recognizer.hypotheses(log_probs, lengths)
        references = [utterance.text for utterance in batch.utterances]  # normalised when the manifest was read
        counts = total(count_errors(*texts) for texts in zip(references, hypotheses, strict=True))
        self._valid.add(counts, losses, batch.token_lengths, log_probs, lengths)

    def on_validation_epoch_end(self) -> None:
        """Lightning's hook; sums over ranks, divided once."""
        sums = self.trainer.strategy.reduce(self._valid.as_tensor(self.device), reduce_op="sum").tolist()
        counts = ErrorCounts(*(round(value) for value in sums[:5]))
        loss, tokens, blanks, frames = sums[5:]
        if counts.utterances == 0:
            raise InputError("validation must have an utterance that can be read; all were skipped, as named above.")
        self.log("valid/wer", counts.wer, prog_bar=True)
        self.log("valid/loss", loss / max(1, tokens))
        self.log("valid/blank_ratio", blanks / max(1, frames))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook; a checkpoint is enough to transcribe with."""
        checkpoint[CHECKPOINT_KEY] = self._extra

    def _report(self, batch: Batch, where: str) -> None:
        for rejected in batch.rejected:
            logger.warning("%s: skipped %s (id %r)", where, rejected.reason, rejected.utterance.id)

    def _nothing(self, batch: Batch) -> Tensor:
        """Take a step's part without an utterance: no loss, and gradients of zero."""
        if self.trainer.world_size > 1:  # the other ranks wait for this one's share of the batch statistics
            raise InputError(f"each rank's batch must have an utterance that can be read; {batch.rejected[0].reason}")
        zero = torch.zeros((), device=self.device)
        self._window.add(zero, zero, zero)
        return zero * sum(parameter.sum() for parameter in self.parameters())

    def _check_finite(self, losses: Tensor, batch: Batch) -> None:
        finite = losses.detach().isfinite()
        if not bool(finite.all()):
            pairs = zip(batch.utterances, finite.tolist(), strict=True)
            ids = [utterance.id for utterance, is_finite in pairs if not is_finite]
            must = f"the loss of every utterance must be finite; in epoch {self.current_epoch} it is not for"
            raise InputError(f"{must} {len(ids)} of {len(finite)}: {', '.join(ids[:5])}. {_FINITE_HINT}")


_FINITE_HINT = "Try a lower optimizer.lr, more schedule.warmup_steps, or trainer.precision=32-true."


class _WindowSums:
    """Loss, tokens and seconds of audio of one accumulation window, on this rank."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._last = time.monotonic()

    def add(self, loss: Tensor, tokens: Tensor, seconds: Tensor) -> None:
        sums = torch.stack([loss.double(), tokens.double(), seconds.double()])
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> Tensor:
        assert self._sums is not None, "an optimizer step follows at least one training step"
        sums, self._sums = self._sums, None
        return sums

    def rate(self, seconds: float) -> float:
        """Seconds of audio a second since the last call."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        return seconds / max(elapsed, 1e-9)


class _ValidationSums:
    """What a validation pass adds up on this rank."""

    def __init__(self) -> None:
        self.counts = ErrorCounts()
        self.loss, self.tokens, self.blanks, self.frames = 0.0, 0, 0, 0

    def add(
        self, counts: ErrorCounts, losses: Tensor, token_lengths: Tensor, log_probs: Tensor, lengths: Tensor
    ) -> None:
        self.counts += counts
        fits = losses.isfinite()  # a text too long for its audio has no loss, but its errors count
        self.loss += float(losses[fits].double().sum())
        self.tokens += int(token_lengths[fits].sum())
        padding = padding_mask(lengths, log_probs.shape[1])
        self.blanks += int(((log_probs.argmax(dim=-1) == BLANK_ID) & ~padding).sum())
        self.frames += int(lengths.sum())

    def as_tensor(self, device: torch.device) -> Tensor:
        sums = [*self.counts.as_tuple(), self.loss, self.tokens, self.blanks, self.frames]
        return torch.tensor(sums, dtype=torch.float64, device=device)
