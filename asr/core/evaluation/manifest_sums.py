"""Loss and errors of each manifest, for splits with several manifests."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.kernels.choice import exact
from asr.base.text.word_errors import ErrorCounts
from asr.core.data.manifest import Utterance

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
