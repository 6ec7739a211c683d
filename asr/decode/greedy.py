"""Greedy (best path) CTC decoding."""

from collections.abc import Callable

from torch import Tensor

from asr.interfaces import BLANK_ID, Hypothesis, Tokenizer
from asr.lengths import padding_mask


class Greedy:
    """Take the best token of each frame, merge repeats, drop blanks.

    Args:
        tokenizer, normalize: as for every decoder; a best path asks neither.
    """

    def __init__(self, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> None:
        pass

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """log_probs (B, T', V), encoder_out_lengths (B,) to one hypothesis an utterance, scored by its best path."""
        best, paths = log_probs.max(dim=-1)  # (B, T')
        scores = best.masked_fill(padding_mask(lengths, best.shape[1]), 0.0).sum(dim=-1).tolist()
        return [
            [Hypothesis(_collapse(path[:length]), score)]
            for path, length, score in zip(paths.tolist(), lengths.tolist(), scores, strict=True)
        ]


def _collapse(path: list[int]) -> list[int]:
    previous = [BLANK_ID, *path]
    return [token for token, before in zip(path, previous, strict=False) if token not in (before, BLANK_ID)]
