"""Words that a stream recognises in one step."""

from typing import NamedTuple

from asr.recognition.transcript import Word


class Captions(NamedTuple):
    """Words of a stream after a new piece of its waveform has been processed.

    Args:
        final: words that became final with this piece.
        partial: the provisional words after the final ones; the full list on each call.
        is_end: whether a segment has ended.
    """

    final: list[Word]
    partial: list[Word]
    is_end: bool = False
