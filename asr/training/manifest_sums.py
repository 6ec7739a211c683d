"""Sums of a validation on one rank, and of each manifest for splits with several manifests."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.data.batch import Rejected
from asr.data.manifest import Utterance
from asr.evaluation.word_errors import ErrorCounts
from asr.interfaces import BLANK_ID
from asr.kernels.choice import exact
from asr.lengths import padding_mask
from asr.run.validation_samples import ValidationSample
from asr.training.step_sums import on_device

Reduce = Callable[[Tensor], Tensor]  # sums a tensor over all ranks


class Rates(NamedTuple):
    """Loss and WER of one manifest over all ranks.

    Args:
        loss: loss per reference token; None: the manifest has no tokens.
        wer: WER, as a fraction; None: the manifest has no reference words.
    """

    loss: float | None
    wer: float | None


class ManifestSums:
    """Sums over the utterances of each manifest on this rank, since the last `take`.

    Args:
        names: names of the manifests, equal on all ranks. With a single manifest there are no sums, because its loss
            and WER are those of the split.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names) if len(names) > 1 else []
        self._rows = {name: row for row, name in enumerate(self.names)}
        self._clear()

    def __bool__(self) -> bool:
        return bool(self.names)

    def _clear(self) -> None:
        self._sums = torch.zeros(len(self.names), 4, dtype=torch.float64)  # loss, tokens, errors, reference words

    def add(
        self, utterances: Sequence[Utterance], losses: Tensor, token_lengths: Tensor, errors: Sequence[ErrorCounts] = ()
    ) -> None:
        """Add a batch.

        Args:
            utterances: B utterances.
            losses: loss of each utterance, (B,); utterances without a finite loss, and their tokens, do not count.
            token_lengths: number of tokens of each reference, (B,).
            errors: errors of the B hypotheses; empty: errors are not counted.
        """
        if not self or not utterances:
            return
        rows_of_utterances = torch.tensor([self._rows[utterance.manifest] for utterance in utterances])
        loss, tokens = losses.detach().cpu().double(), token_lengths.cpu().double()
        fits = loss.isfinite()
        words = torch.tensor([(each.errors, each.reference_length) for each in errors], dtype=torch.float64)
        rows = torch.stack([loss.where(fits, 0.0), tokens.where(fits, 0.0)], dim=1)
        columns = torch.cat([rows, words if errors else torch.zeros_like(rows)], dim=1)
        self._sums.index_add_(0, rows_of_utterances, columns)

    def take(self, reduce: Reduce, device: torch.device) -> dict[str, Rates]:
        """Return loss and WER of each manifest over all ranks, and reset the sums; all ranks must call this method."""
        if not self:
            return {}
        sums = reduce(self._sums.to(exact(device)).to(device)).tolist()
        self._clear()
        return {
            name: Rates(loss / tokens if tokens else None, errors / words if words else None)
            for name, (loss, tokens, errors, words) in zip(self.names, sums, strict=True)
        }


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
