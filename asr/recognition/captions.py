"""Words that a stream recognises in one step."""

from typing import NamedTuple

from asr.recognition.transcript import Word


class Captions(NamedTuple):
    """Words of a stream after a new piece of its waveform has been processed.

    Args:
        final: words that became final with this piece.
        partial: all provisional words, which follow the final words; they replace the previous provisional words.
        is_end: whether a segment has ended.
    """

    final: list[Word]
    partial: list[Word]
    is_end: bool = False
