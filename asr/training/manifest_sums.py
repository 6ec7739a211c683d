"""Losses and errors of each manifest of a split that has several."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.data.manifest import Utterance
from asr.evaluation.word_errors import ErrorCounts
from asr.kernels.choice import exact

Reduce = Callable[[Tensor], Tensor]  # sums a tensor over all ranks


class Rates(NamedTuple):
    """Figures of one manifest over all ranks.

    Args:
        loss: per reference token; None: there was no token.
        wer: None: there was no reference word.
    """

    loss: float | None
    wer: float | None


class ManifestSums:
    """Sums over the utterances of each manifest on this rank, until they are taken.

    Args:
        names: of the manifests, the same on all ranks. One manifest alone is not summed: the split's figures are its.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names) if len(names) > 1 else []
        self._places = {name: place for place, name in enumerate(self.names)}
        self._clear()

    def __bool__(self) -> bool:
        return bool(self.names)

    def _clear(self) -> None:
        self._sums = torch.zeros(len(self.names), 4, dtype=torch.float64)  # loss, tokens, errors, words of references

    def add(
        self, utterances: Sequence[Utterance], losses: Tensor, token_lengths: Tensor, errors: Sequence[ErrorCounts] = ()
    ) -> None:
        """Add a batch.

        Args:
            utterances: B of them.
            losses: (B,); one that is not finite is left out, with its tokens.
            token_lengths: (B,).
            errors: of the hypotheses, B of them; empty: they were not counted.
        """
        if not self or not utterances:
            return
        places = torch.tensor([self._places[utterance.manifest] for utterance in utterances])
        loss, tokens = losses.detach().cpu().double(), token_lengths.cpu().double()
        fits = loss.isfinite()
        words = torch.tensor([(each.errors, each.reference_length) for each in errors], dtype=torch.float64)
        rows = torch.stack([loss.where(fits, 0.0), tokens.where(fits, 0.0)], dim=1)
        columns = torch.cat([rows, words if errors else torch.zeros_like(rows)], dim=1)
        self._sums.index_add_(0, places, columns)

    def take(self, reduce: Reduce, device: torch.device) -> dict[str, Rates]:
        """Return the figures of each manifest over all ranks, which all must call, and begin anew."""
        if not self:
            return {}
        sums = reduce(self._sums.to(exact(device)).to(device)).tolist()
        self._clear()
        return {
            name: Rates(loss / tokens if tokens else None, errors / words if words else None)
            for name, (loss, tokens, errors, words) in zip(self.names, sums, strict=True)
        }
