"""Sums of a validation on one rank."""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.data.batch import Rejected
from asr.evaluation.word_errors import ErrorCounts
from asr.interfaces import BLANK_ID
from asr.lengths import padding_mask
from asr.run.validation_samples import ValidationSample
from asr.training.manifest_sums import ManifestSums
from asr.training.step_sums import on_device


class ValidationSums:
    """Sums of a validation on this rank.

    Args:
        manifests: names of the validation manifests.
    """

    def __init__(self, manifests: Sequence[str]) -> None:
        self.of_manifests = ManifestSums(manifests)
        self.counts = ErrorCounts()
        self.loss, self.tokens, self.blanks, self.frames = 0.0, 0, 0, 0
        self.rejected: list[Rejected] = []
        self.samples: list[ValidationSample] = []

    def add(self, counts: ErrorCounts, losses: Tensor, token_lengths: Tensor) -> None:
        self.counts += counts
        fits = losses.isfinite()  # a text that is too long for its audio has an infinite loss, but its errors count
        self.loss += float(losses[fits].cpu().double().sum())
        self.tokens += int(token_lengths[fits].sum())

    def add_frames(self, log_probs: Tensor, lengths: Tensor) -> None:
        padding = padding_mask(lengths, log_probs.shape[1])
        self.blanks += int(((log_probs.argmax(dim=-1) == BLANK_ID) & ~padding).sum())
        self.frames += int(lengths.sum())

    def as_tensor(self, device: torch.device) -> Tensor:
        sums = [*self.counts.as_tuple(), self.loss, self.tokens, self.blanks, self.frames, len(self.rejected)]
        return on_device(sums, device)
