"""Cut long recordings into overlapping chunks, stitch their encoder_out together, and cut the result at pauses.

Memory is bounded by the chunk and by the segment that `cut_at_pauses` buffers. Time is linear in the recording's
length.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import InputError
from asr.interfaces import BLANK_ID, Span


class ChunkBounds(NamedTuple):
    """Sizes of the chunks of long recordings.

    Args:
        chunk_seconds: duration of a chunk, including its contexts; a recording up to this length is one chunk.
        context_seconds: context at each end of a chunk; its output is discarded, and chunks overlap by two contexts.
    """

    chunk_seconds: float
    context_seconds: float

    def within(self, max_seconds: float) -> "ChunkBounds":
        """Limit the chunks to `max_seconds`."""
        if self.chunk_seconds <= max_seconds:
            return self
        return ChunkBounds(max_seconds, min(self.context_seconds, max_seconds / 4))

    def samples(self, sample_rate: int, frame_samples: int) -> tuple[int, int]:
        """Return the lengths of chunk and context in samples, rounded to encoder frames of `frame_samples` samples."""
        chunk = max(1, round(self.chunk_seconds * sample_rate / frame_samples))
        context = round(self.context_seconds * sample_rate / frame_samples)
        if context < 0 or chunk <= 2 * context:
            must = "context_seconds must be at least 0 and less than half of chunk_seconds"
            raise InputError(f"{must}; got {self.context_seconds} and {self.chunk_seconds}.")
        return chunk * frame_samples, context * frame_samples


class Chunk(NamedTuple):
    """A chunk that begins at sample `start`; its output is used from sample `keep` to the next chunk's `keep`."""

    start: int
    keep: int
    waveform: Tensor


def cut_chunks(blocks: Iterable[Tensor], chunk: int, context: int) -> Iterator[Chunk]:
    """Cut a recording into overlapping chunks.

    The last chunk may be shorter than `chunk`. If there are several chunks, the last one is longer than two contexts.

    Args:
        blocks: consecutive parts of the waveform, (S,) each.
        chunk: length of a chunk in samples.
        context: length of a context in samples.
    """
    step = chunk - 2 * context
    unread, start = torch.zeros(0), 0
    for block in blocks:
        unread = torch.cat([unread, block])
        while len(unread) > chunk:  # samples remain after this chunk, so it is not the last
            yield Chunk(start, start + context if start else 0, unread[:chunk].clone())
            unread, start = unread[step:], start + step
    yield Chunk(start, start + context if start else 0, unread)


def stitch(chunks: Iterable[tuple[int, int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
    """Join the encoder_out (T', D) of overlapping chunks.

    A chunk's output is used from its frame `keep` to the next chunk's `keep`.

    Args:
        chunks: for each chunk, in order: its first frame, the frame `keep`, and encoder_out, which has no frames if the
            chunk has no speech.

    Yields:
        First frame and encoder_out of a piece. Pieces are consecutive, with gaps where there is no speech.
    """
    before: tuple[int, int, Tensor] | None = None
    for chunk in chunks:
        if before is not None:
            start, keep, encoder_out = before
            yield keep, encoder_out[keep - start : chunk[1] - start]
        before = chunk
    if before is not None:
        start, keep, encoder_out = before
        yield keep, encoder_out[keep - start :]


def cut_at_pauses(
    pieces: Iterable[tuple[int, Tensor]], max_frames: int, pause: Callable[[Tensor], int]
) -> Iterator[tuple[int, Tensor]]:
    """Cut a stream of encoder_out (T', D) into segments that are decoded separately; yield first frame and segment.

    A segment ends at a gap, which is a piece without frames. If there is no gap within `max_frames`, the segment is cut
    at a pause in the second half of `max_frames`, so that a cut rarely goes through a word. A stream without frames is
    one segment without frames.

    Args:
        pieces: pieces of the stream, each with its first frame.
        max_frames: maximum length of a segment.
        pause: returns the frame at which to cut encoder_out (T', D).
    """
    buffered: list[Tensor] = []
    start, num_segments = 0, 0
    empty = torch.zeros(0, 0)
    for position, piece in pieces:
        if len(piece) == 0:  # a gap
            if buffered:
                yield start, torch.cat(buffered)
                num_segments += 1
            buffered, empty = [], piece
            continue
        start = start if buffered else position
        buffered.append(piece)
        while sum(map(len, buffered)) > max_frames:
            frames = torch.cat(buffered)
            half = max_frames // 2
            end = max(1, half + pause(frames[half:max_frames]))
            yield start, frames[:end].clone()
            num_segments += 1
            buffered, start = [frames[end:]], start + end
    rest = torch.cat(buffered) if buffered else empty
    if len(rest) or num_segments == 0:
        yield start, rest


def pause_in_blanks(log_probs: Tensor) -> int:
    """Return the middle of the longest run of blanks in log_probs (T', V).

    If the blank is not the most likely token of any frame, return the frame with the highest probability of the blank.
    """
    is_blank = log_probs.argmax(dim=-1) == BLANK_ID
    return longest_run(is_blank) if is_blank.any() else int(log_probs[:, BLANK_ID].argmax())


def pause_between(frames: Iterable[Span], num_frames: int) -> int:
    """Return the middle of the longest run of frames without a token.

    If tokens cover all frames, return the token end closest to the middle.

    Args:
        frames: frames of the tokens.
        num_frames: total number of frames.
    """
    frames = list(frames)
    is_free = torch.ones(num_frames, dtype=torch.bool)
    for start, end in frames:
        is_free[start:end] = False
    if is_free.any():
        return longest_run(is_free)
    return min((span.end for span in frames), key=lambda end: abs(end - num_frames // 2))


def longest_run(mask: Tensor) -> int:
    """Return the middle of the longest run of True in a mask (T',) with at least one True."""
    edge = torch.zeros(1, device=mask.device)
    edges = torch.diff(mask.int(), prepend=edge, append=edge).nonzero()[:, 0]
    starts, ends = edges[0::2], edges[1::2]
    longest = int((ends - starts).argmax())
    return int(starts[longest] + ends[longest]) // 2
