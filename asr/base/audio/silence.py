"""Cut long recordings into segments at pauses, which are found by loudness alone."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

FRAME_SECONDS = 0.02
SMOOTHED_FRAMES = 5  # odd; a level is the median of 5 frames, so that a click of 2 frames does not end a pause
HEARD_DB = 60.0  # frames this far below the loudest frame, such as digital silence, do not count in the noise level
MAX_CONTRAST_DB = 45.0  # maximum speech level above noise; weak speech sounds may be this far below loud ones
MIN_MARGIN_DB = 3.0  # frames up to this far above the noise are silent, because the level of the noise varies
LATE = 1 / 3  # preferred minimum length of a segment, as a fraction of max_seconds
LAST = 2 / 3  # without a pause, the cut is anywhere between this fraction of max_seconds and max_seconds


class _Pause(NamedTuple):
    """A run of silent frames from `begin` to `end`, excluding `end`."""

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
    """Cut a waveform that arrives in blocks into consecutive segments, if possible in the middle of pauses.

    No sample is dropped: the concatenated segments are the waveform. A waveform of at most `max_seconds` is one
    segment. In a longer waveform, the first cut is at the best pause within the first `max_seconds`; the search for the
    next cut then starts at this cut. Long pauses rank highest, then pauses after a third of `max_seconds`, so that
    segments have enough context. Among equal ranks, the longest pause is chosen. Without a pause, the cut is at the
    quietest tenth of a second in the last third.

    A frame is silent if its level in dB is below noise + (speech - noise) / 3. Noise and speech are the 5th and 95th
    percentiles of the levels within the `max_seconds` that are searched. The result therefore does not depend on the
    loudness of the recording or on a constant offset, and constant noise of any loudness is silence.

    At most `max_seconds` and one block are buffered. The sizes of the blocks do not change the result.

    Args:
        blocks: consecutive parts of the waveform, (S,) each, of any length; samples must be finite.
        sample_rate: sample rate of the waveform, in Hz.
        max_seconds: maximum duration of a segment.
        min_silence_seconds: minimum duration of a pause.
        long_silence_seconds: minimum duration of a pause that is preferred even if it comes early.

    Yields:
        Position of a segment's first sample, and the segment, (S,).
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
            yield start, waveform[:cut].clone()  # a view would keep the remaining samples in memory
            start, waveform = start + cut, waveform[cut:]
        uncut, num_uncut = [waveform], len(waveform)
    if num_uncut:
        yield start, torch.cat(uncut)


def _energies(waveform: Tensor, frame_samples: int) -> Tensor:
    """Return the variance of the samples of each complete frame, (S,) -> (T,); an offset does not change it."""
    num_frames = len(waveform) // frame_samples
    frames = waveform[: num_frames * frame_samples].view(num_frames, frame_samples)
    return frames.double().var(dim=1, correction=0)


def _cut_frame(energies: Tensor, min_frames: int, long_frames: int) -> float:
    """Return the position of a cut, in frames from the start of the segment; it is greater than 0."""
    num_frames = len(energies)
    pauses = [pause for pause in _pauses(_silent(energies)) if pause.end - pause.begin >= min_frames]
    # A pause at the start is left out: it may be the second half of the pause in which the previous segment was cut.
    within = [pause for pause in pauses if pause.begin >= min_frames]
    if within:
        begin, end = max(within, key=lambda pause: _worth(pause, num_frames, long_frames))
        return (begin + end) / 2
    if pauses and pauses[0].end >= long_frames:  # the only pause is a long silence at the start: cut near its end
        return pauses[0].end - min_frames / 2
    first = int(num_frames * LAST)
    # Levels are averaged, because a single quiet frame may be the closure of a "t".
    return first + int(_neighbours(energies).mean(dim=1)[first:].argmin()) + 0.5


def _worth(pause: _Pause, num_frames: int, long_frames: int) -> tuple[bool, bool, int, int]:
    """Return the sort key of a pause: whether it is long, whether it is late, its length, its position."""
    length = pause.end - pause.begin
    return length >= long_frames, pause.begin + pause.end >= 2 * LATE * num_frames, length, pause.begin


def _silent(energies: Tensor) -> Tensor:
    """Return which frames are silent relative to the other frames, (T,) bool."""
    smoothed = _neighbours(energies).median(dim=1).values
    loudest = smoothed.max()
    if loudest == 0:
        return torch.ones(len(energies), dtype=torch.bool)
    levels = 10 * (smoothed / loudest).log10()  # dB; minus infinity at energy 0
    audible = levels[levels > -HEARD_DB]
    speech = audible.quantile(0.95)
    noise = torch.maximum(audible.quantile(0.05), speech - MAX_CONTRAST_DB)
    return levels < noise + torch.clamp((speech - noise) / 3, min=MIN_MARGIN_DB)


def _neighbours(energies: Tensor) -> Tensor:
    """Return the values around each frame, (T,) -> (T, SMOOTHED_FRAMES); the first and last values are repeated."""
    reach = SMOOTHED_FRAMES // 2
    return torch.cat([energies[:1].expand(reach), energies, energies[-1:].expand(reach)]).unfold(0, SMOOTHED_FRAMES, 1)


def _pauses(silent: Tensor) -> list[_Pause]:
    """Return the runs of silent frames, in order."""
    edges = torch.nn.functional.pad(silent.int(), (1, 1)).diff()  # (T + 1,)
    begins, ends = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
    return [_Pause(begin, end) for begin, end in zip(begins, ends, strict=True)]
