"""What a piece of a stream adds to its words."""

from typing import NamedTuple

from asr.recognition.transcript import Word


class Captions(NamedTuple):
    """What a piece of a stream added.

    Args:
        final: words that are final now, and were not before.
        partial: words behind them, as far as they were heard; all of them, each time.
        is_end: whether a stretch of speech has ended.
    """

    final: list[Word]
    partial: list[Word]
    is_end: bool = False
