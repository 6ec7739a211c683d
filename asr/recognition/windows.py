"""Long recordings in windows that overlap, their log_probs stitched to one stream, and the stream cut at pauses.

Memory is bounded by the window and by what `cut_at_pauses` holds; time is linear in the length.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from asr.errors import InputError
from asr.interfaces import BLANK_ID


class WindowBounds(NamedTuple):
    """How long recordings are cut.

    Args:
        window_seconds: what is recognised at once; recordings up to this are one window.
        context_seconds: at each end of a window, what is only there to be heard: the overlap is twice that.
    """

    window_seconds: float
    context_seconds: float

    def samples(self, sample_rate: int, hop: int) -> tuple[int, int]:
        """Window and context in samples, rounded to encoder frames of `hop` samples.

        Raises:
            InputError: a window does not hold more than its contexts.
        """
        window = max(1, round(self.window_seconds * sample_rate / hop))
        context = round(self.context_seconds * sample_rate / hop)
        if context < 0 or window <= 2 * context:
            must = "context_seconds must be at least 0, and less than half of window_seconds"
            raise InputError(f"{must}; got {self.context_seconds} and {self.window_seconds}.")
        return window * hop, context * hop


class Window(NamedTuple):
    """A stretch of a recording, and the samples of the recording it answers for: from `keep` on to the next's."""

    start: int
    keep: int
    waveform: Tensor


def cut_windows(blocks: Iterable[Tensor], window: int, context: int) -> Iterator[Window]:
    """Cut a recording into windows; the last one may be shorter, but is longer than two contexts if it is not alone.

    Args:
        blocks: waveforms (S,) that follow each other.
        window: samples.
        context: samples.
    """
    step = window - 2 * context
    held, start = torch.zeros(0), 0
    for block in blocks:
        held = torch.cat([held, block])
        while len(held) > window:  # more is to come, so this is not the last
            yield Window(start, start + context if start else 0, held[:window].clone())
            held, start = held[step:], start + step
    yield Window(start, start + context if start else 0, held)


def stitch(windows: Iterable[tuple[int, int, Tensor]]) -> Iterator[Tensor]:
    """Join the windows' log_probs (T', V): each frame is that of the window that answers for it.

    Args:
        windows: first frame, first frame to keep, log_probs; in order.
    """
    before: tuple[int, int, Tensor] | None = None
    for window in windows:
        if before is not None:
            start, keep, log_probs = before
            yield log_probs[keep - start : window[1] - start]
        before = window
    if before is not None:
        start, keep, log_probs = before
        yield log_probs[keep - start :]


def cut_at_pauses(pieces: Iterable[Tensor], max_frames: int) -> Iterator[tuple[int, Tensor]]:
    """Cut a stream of log_probs (T', V) into segments to be decoded each by itself; yield first frame and segment.

    A segment is cut only where it would be longer than `max_frames`: in the middle of the longest run of blanks in its
    second half, or at the frame there where blank is most likely, so that no word is torn if that can be.
    """
    held: list[Tensor] = []
    start = 0
    for piece in pieces:
        held.append(piece)
        while sum(map(len, held)) > max_frames:
            log_probs = torch.cat(held)
            end = _best_cut(log_probs[:max_frames])
            yield start, log_probs[:end].clone()
            held, start = [log_probs[end:]], start + end
    rest = torch.cat(held) if held else torch.zeros(0, 0)
    if len(rest) or start == 0:
        yield start, rest


def _best_cut(log_probs: Tensor) -> int:
    half = len(log_probs) // 2
    blank = log_probs[half:, BLANK_ID]
    is_blank = log_probs[half:].argmax(dim=-1) == BLANK_ID
    if not is_blank.any():
        return max(1, half + int(blank.argmax()))
    edges = torch.diff(is_blank.int(), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero()[:, 0]
    starts, ends = edges[0::2], edges[1::2]
    longest = int((ends - starts).argmax())
    return max(1, half + int(starts[longest] + ends[longest]) // 2)
