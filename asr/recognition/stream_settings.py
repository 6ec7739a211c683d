"""Settings of a stream: how it is cut into chunks, and when its words are final."""

from dataclasses import dataclass
from typing import Annotated

from asr.settings.rule import CHUNK_SECONDS, LEFT_SECONDS, RIGHT_SECONDS, or_null

ENDPOINT_SECONDS = 1.0
SETTLED_SECONDS = 1.0


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a stream, in seconds, which are rounded to encoder frames.

    Args:
        chunk_seconds: recognised at once; None: the model's own.
        left_seconds: seen before a chunk; None: the model's own.
        right_seconds: seen after a chunk, which waits for them; None: the model's own.
        endpoint_seconds: silence that ends a segment; None: no silence does.
        settled_seconds: after the end of a word, when the best hypothesis makes it final; None: all hypotheses must
            agree, which may take long.
    """

    chunk_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = None
    left_seconds: Annotated[float | None, or_null(LEFT_SECONDS)] = None
    right_seconds: Annotated[float | None, or_null(RIGHT_SECONDS)] = None
    endpoint_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = ENDPOINT_SECONDS
    settled_seconds: Annotated[float | None, or_null(CHUNK_SECONDS)] = SETTLED_SECONDS


DEFAULT = StreamSettings()
