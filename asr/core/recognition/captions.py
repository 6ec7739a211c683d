"""Settings of a stream, and the words that it recognises in one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from asr.base.settings.rule import CHUNK_SECONDS, LEFT_SECONDS, RIGHT_SECONDS, OptionalText, or_null
from asr.core.recognition.transcript import Word

ENDPOINT_SECONDS = 1.0
SETTLED_SECONDS = 1.0
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # `asr.base.text.words.spell` writes it for bytes that are no character


class Captions(NamedTuple):
    """Words of a stream after a new piece of its waveform has been processed.

    Args:
        final: words that became final with this piece.
        partial: all provisional words, which follow the final words; they replace the previous provisional words.
        is_end: whether a segment has ended: by the piece <EOU>, by silence, by `Stream.flush` or with the stream.
        is_backchannel: whether the final words end with the piece <EOB>: they were a backchannel, such as "mm-hm".
    """

    final: list[Word]
    partial: list[Word]
    is_end: bool = False
    is_backchannel: bool = False


def of_whole_characters(words: Sequence[Word]) -> list[Word]:
    """Return provisional words without a last character whose other bytes are not recognised yet."""
    text = words[-1].text.rstrip(UNFINISHED) if words else ""
    return [*words[:-1], *([replace(words[-1], text=text)] if text else [])]


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a stream, in seconds, rounded to encoder frames.

    Args:
        chunk_seconds: duration of a chunk; None: the model's setting.
        left_seconds: left context of a chunk; None: the model's setting.
        right_seconds: right context of a chunk, which adds to the latency; None: the model's setting.
        latency: one of the latencies of a model that has a list of them, in place of `chunk_seconds`.
        endpoint_seconds: duration of silence that ends a segment; None: a segment ends only with the stream.
        settled_seconds: time from the end of a word of the best hypothesis until the word is final; None: a word is
            final only when all hypotheses agree on it, which may take a long time.
        language: language of the stream, for a model with a prompt; None: unknown.
    """

    chunk_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = None
    left_seconds: Annotated[float | None, or_null(LEFT_SECONDS)] = None
    right_seconds: Annotated[float | None, or_null(RIGHT_SECONDS)] = None
    latency: Annotated[float | None, or_null(CHUNK_SECONDS)] = None
    endpoint_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = ENDPOINT_SECONDS
    settled_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = SETTLED_SECONDS
    language: OptionalText = None


DEFAULT = StreamSettings()
