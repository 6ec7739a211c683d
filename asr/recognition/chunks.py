"""Long recordings in chunks that overlap, their encoder_out stitched to one stream, and the stream cut at pauses.

Memory is bounded by the chunk and by what `cut_at_pauses` holds; time is linear in the length.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import InputError
from asr.interfaces import BLANK_ID, Span


class ChunkBounds(NamedTuple):
    """How long recordings are cut.

    Args:
        chunk_seconds: what is recognised at once; recordings up to this are one chunk.
        context_seconds: at each end of a chunk, what is only there to be heard: the overlap is twice that.
    """

    chunk_seconds: float
    context_seconds: float

    def within(self, max_seconds: float) -> "ChunkBounds":
        """The same, with chunks of at most so many seconds."""
        if self.chunk_seconds <= max_seconds:
            return self
        return ChunkBounds(max_seconds, min(self.context_seconds, max_seconds / 4))

    def samples(self, sample_rate: int, frame_samples: int) -> tuple[int, int]:
        """Chunk and context in samples, rounded to encoder frames of `frame_samples` samples.

        Raises:
            InputError: a chunk does not hold more than its contexts.
        """
        chunk = max(1, round(self.chunk_seconds * sample_rate / frame_samples))
        context = round(self.context_seconds * sample_rate / frame_samples)
        if context < 0 or chunk <= 2 * context:
            must = "context_seconds must be at least 0, and less than half of chunk_seconds"
            raise InputError(f"{must}; got {self.context_seconds} and {self.chunk_seconds}.")
        return chunk * frame_samples, context * frame_samples


class Chunk(NamedTuple):
    """A stretch of a recording, and the samples of the recording it answers for: from `keep` on to the next's."""

    start: int
    keep: int
    waveform: Tensor


def cut_chunks(blocks: Iterable[Tensor], chunk: int, context: int) -> Iterator[Chunk]:
    """Cut a recording into chunks; the last one may be shorter, but is longer than two contexts if it is not alone.

    Args:
        blocks: waveforms (S,) that follow each other.
        chunk: samples.
        context: samples.
    """
    step = chunk - 2 * context
    unread, start = torch.zeros(0), 0
    for block in blocks:
        unread = torch.cat([unread, block])
        while len(unread) > chunk:  # more is to come, so this is not the last
            yield Chunk(start, start + context if start else 0, unread[:chunk].clone())
            unread, start = unread[step:], start + step
    yield Chunk(start, start + context if start else 0, unread)


def stitch(chunks: Iterable[tuple[int, int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
    """Join the chunks' encoder_out (T', D): each frame is that of the chunk that answers for it.

    Args:
        chunks: first frame, first frame to keep, encoder_out; in order. One without frames holds no speech.

    Yields:
        first frame and encoder_out of a piece. Pieces follow each other, but for gaps where there is no speech.
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
    """Cut a stream of encoder_out (T', D) into segments to be decoded each by itself; yield first frame and segment.

    A segment ends at a gap, which a piece without frames stands for, and where it would be longer than `max_frames`: at
    a pause in its second half, so that no word is torn if that can be. A stream without frames is one segment, without
    frames.

    Args:
        pieces: of the stream, with their first frames.
        max_frames: of a segment.
        pause: finds the frame of encoder_out (T', D) to cut at.
    """
    waiting: list[Tensor] = []
    start, num_segments = 0, 0
    empty = torch.zeros(0, 0)
    for position, piece in pieces:
        if len(piece) == 0:  # a gap
            if waiting:
                yield start, torch.cat(waiting)
                num_segments += 1
            waiting, empty = [], piece
            continue
        start = start if waiting else position
        waiting.append(piece)
        while sum(map(len, waiting)) > max_frames:
            frames = torch.cat(waiting)
            half = max_frames // 2
            end = max(1, half + pause(frames[half:max_frames]))
            yield start, frames[:end].clone()
            num_segments += 1
            waiting, start = [frames[end:]], start + end
    rest = torch.cat(waiting) if waiting else empty
    if len(rest) or num_segments == 0:
        yield start, rest


def pause_in_blanks(log_probs: Tensor) -> int:
    """Return the middle of the longest run of blanks in (T', V), or else the frame where blank is most likely."""
    is_blank = log_probs.argmax(dim=-1) == BLANK_ID
    return longest_run(is_blank) if is_blank.any() else int(log_probs[:, BLANK_ID].argmax())


def pause_between(frames: Iterable[Span], num_frames: int) -> int:
    """Return the middle of the longest run of frames in which no token is written.

    Where tokens fill all frames, it is the end of one in the middle.

    Args:
        frames: of the tokens.
        num_frames: in which they lie.
    """
    frames = list(frames)
    is_free = torch.ones(num_frames, dtype=torch.bool)
    for start, end in frames:
        is_free[start:end] = False
    if is_free.any():
        return longest_run(is_free)
    return min((span.end for span in frames), key=lambda end: abs(end - num_frames // 2))


def longest_run(mask: Tensor) -> int:
    """Return the middle of the longest run of True in a mask (T',), which has some."""
    edge = torch.zeros(1, device=mask.device)
    edges = torch.diff(mask.int(), prepend=edge, append=edge).nonzero()[:, 0]
    starts, ends = edges[0::2], edges[1::2]
    longest = int((ends - starts).argmax())
    return int(starts[longest] + ends[longest]) // 2
