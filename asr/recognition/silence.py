"""Long recordings to stretches that begin and end in pauses, by loudness alone."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

FRAME_SECONDS = 0.02
SMOOTHED_FRAMES = 5  # a level is the median of so many, so that a click of 2 frames ends no pause; an odd number
HEARD_DB = 60.0  # frames so far below the loudest, such as digital silence, do not tell how loud the noise is
MAX_CONTRAST_DB = 45.0  # noise further below the speech counts as that: weak sounds of speech may be as weak
MIN_MARGIN_DB = 3.0  # by which the level of noise varies from frame to frame
LATE = 1 / 3  # of max_seconds: a stretch had better be no shorter
LAST = 2 / 3  # of max_seconds: from there on a stretch without a pause is cut


class _Pause(NamedTuple):
    """Frames `begin` to `end` are silent."""

    begin: int
    end: int


def cut_at_silences(
    blocks: Iterable[Tensor],
    sample_rate: int,
    *,
    max_seconds: float,
    min_silence_seconds: float = 0.3,
    long_silence_seconds: float = 1.0,
) -> Iterator[tuple[int, Tensor]]:
    """Cut a waveform that comes in blocks into consecutive stretches, if possible in the middle of pauses.

    Nothing is dropped: joined, the stretches are the waveform. A waveform of at most `max_seconds` is one stretch.
    Otherwise its first `max_seconds` are searched for the pause to cut at, then those from there, and so on. The best
    pause is a long one; among equals one after a third of `max_seconds`, so that stretches keep their context; among
    those the longest. If there is no pause, the cut is where a tenth of a second in the last third is the quietest.

    A frame is silent if it lies below a third of the way, in dB, from the noise to the speech of the `max_seconds`
    searched (percentiles 5 and 95 of their frames). So neither the loudness of the recording nor a constant offset
    matters, and constant noise, however loud, is silence.

    No more than `max_seconds` and a block are held, and how the waveform is cut into blocks changes nothing.

    Args:
        blocks: (S,) each, of any length, of finite samples.
        max_seconds: the longest stretch.
        min_silence_seconds: the shortest pause.
        long_silence_seconds: the shortest pause that may well end a stretch early.

    Shapes:
        yields: the number of a stretch's first sample, and the stretch, (S,).
    """
    max_samples = max(1, int(max_seconds * sample_rate))
    frame_samples = min(max_samples, max(1, round(FRAME_SECONDS * sample_rate)))
    min_frames, long_frames = (
        max(1, round(seconds * sample_rate / frame_samples)) for seconds in (min_silence_seconds, long_silence_seconds)
    )
    start, num_uncut = 0, 0
    uncut: list[Tensor] = []
    for block in blocks:
        uncut.append(block)
        num_uncut += len(block)
        if num_uncut <= max_samples:
            continue
        waveform = torch.cat(uncut)
        while len(waveform) > max_samples:
            frame = _cut_frame(_energies(waveform[:max_samples], frame_samples), min_frames, long_frames)
            cut = max(1, int(frame * frame_samples))
            yield start, waveform[:cut].clone()  # not a view, which would hold the rest, too
            start, waveform = start + cut, waveform[cut:]
        uncut, num_uncut = [waveform], len(waveform)
    if num_uncut:
        yield start, torch.cat(uncut)


def _energies(waveform: Tensor, frame_samples: int) -> Tensor:
    """The variance of each whole frame: unlike the mean of squares, it knows no constant offset. (S,) -> (T,)"""
    num_frames = len(waveform) // frame_samples
    frames = waveform[: num_frames * frame_samples].view(num_frames, frame_samples)
    return frames.double().var(dim=1, correction=0)


def _cut_frame(energies: Tensor, min_frames: int, long_frames: int) -> float:
    """Where to cut, in frames from the first; not 0."""
    num_frames = len(energies)
    pauses = [pause for pause in _pauses(_silent(energies)) if pause.end - pause.begin >= min_frames]
    within = [pause for pause in pauses if pause.begin >= min_frames]  # earlier ones may be the rest of one cut before
    if within:
        begin, end = max(within, key=lambda pause: _worth(pause, num_frames, long_frames))
        return (begin + end) / 2
    if pauses and pauses[0].end >= long_frames:  # silence, then speech without a pause, or none: leave a little silence
        return pauses[0].end - min_frames / 2
    first = int(num_frames * LAST)
    return first + int(_neighbours(energies).mean(dim=1)[first:].argmin()) + 0.5  # one frame alone may be within a "t"


def _worth(pause: _Pause, num_frames: int, long_frames: int) -> tuple[bool, bool, int, int]:
    """What pauses are compared by, the most important first: is it long, is it late, how long, how late."""
    length = pause.end - pause.begin
    return length >= long_frames, pause.begin + pause.end >= 2 * LATE * num_frames, length, pause.begin


def _silent(energies: Tensor) -> Tensor:
    """Which frames are silent, next to the others: (T,) bool."""
    smoothed = _neighbours(energies).median(dim=1).values
    loudest = smoothed.max()
    if loudest == 0:
        return torch.ones(len(energies), dtype=torch.bool)
    levels = 10 * (smoothed / loudest).log10()  # dB; minus infinity where all is 0
    audible = levels[levels > -HEARD_DB]
    speech = audible.quantile(0.95)
    noise = torch.maximum(audible.quantile(0.05), speech - MAX_CONTRAST_DB)
    return levels < noise + torch.clamp((speech - noise) / 3, min=MIN_MARGIN_DB)


def _neighbours(energies: Tensor) -> Tensor:
    """Each frame and those around it, as if the first and the last went on: (T,) -> (T, SMOOTHED_FRAMES)."""
    reach = SMOOTHED_FRAMES // 2
    return torch.cat([energies[:1].expand(reach), energies, energies[-1:].expand(reach)]).unfold(0, SMOOTHED_FRAMES, 1)


def _pauses(silent: Tensor) -> list[_Pause]:
    """The runs of silent frames, in order."""
    edges = torch.nn.functional.pad(silent.int(), (1, 1)).diff()  # (T + 1,)
    begins, ends = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
    return [_Pause(begin, end) for begin, end in zip(begins, ends, strict=True)]
