"""Greedy (best path) CTC decoding."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

from torch import Tensor

from asr.interfaces import BLANK_ID, NO_HOTWORDS, FrameHead, Head, Hypothesis, Tokenizer, Tunable
from asr.lengths import padding_mask


class Greedy:
    """Take the best token of each frame, merge repeats, drop blanks.

    Args:
        head: with a frame head.
        tokenizer, normalize: as for every decoder; a best path asks neither.
    """

    needs = ("frame_head",)
    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the best path"

    def __init__(self, head: Head, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> None:
        self._log_probs = cast(FrameHead, head.frame_head).log_probs

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find the best token of each frame and its log-probability, (B, T') each; lengths are the frames."""
        best, paths = self._log_probs(encoder_out).max(dim=-1)  # (B, T')
        return best, paths, lengths

    def search(self, evidence: tuple[Tensor, Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Find one hypothesis of each utterance, scored by its best path."""
        best, paths, lengths = evidence
        scores = best.masked_fill(padding_mask(lengths, best.shape[1]), 0.0).sum(dim=-1).tolist()
        return [
            [Hypothesis(_collapse(path[:length]), score)]
            for path, length, score in zip(paths.tolist(), lengths.tolist(), scores, strict=True)
        ]


def _collapse(path: list[int]) -> list[int]:
    previous = [BLANK_ID, *path]
    return [token for token, before in zip(path, previous, strict=False) if token not in (before, BLANK_ID)]
