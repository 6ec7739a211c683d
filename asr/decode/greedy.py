"""Greedy (best path) CTC decoding."""

from torch import Tensor

from asr.interfaces import BLANK_ID


class Greedy:
    """Take the best token of each frame, merge repeats, drop blanks."""

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
        """log_probs (B, T', V), encoder_out_lengths (B,) to the token ids of each utterance."""
        paths = log_probs.argmax(dim=-1).tolist()
        return [_collapse(path[:length]) for path, length in zip(paths, lengths.tolist(), strict=True)]


def _collapse(path: list[int]) -> list[int]:
    previous = [BLANK_ID, *path]
    return [token for token, before in zip(path, previous, strict=False) if token not in (before, BLANK_ID)]
