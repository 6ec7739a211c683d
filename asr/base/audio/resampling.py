"""Conversion between any two sample rates, block by block, by libsoxr (quality HQ).

The bits of the result depend neither on the division into blocks nor on the number of threads.

If the lower rate is 16 kHz, frequencies up to 7.2 kHz change by less than 0.01 dB, the attenuation at 7.5 kHz is
0.4 dB, and frequencies above 8.1 kHz are attenuated by more than 120 dB; other lower rates scale these frequencies.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import soxr
import torch
from torch import Tensor


def resampled(blocks: Iterable[Tensor], source_rate: int, target_rate: int) -> Iterator[Tensor]:
    """Resample consecutive blocks of one waveform as if they were joined and surrounded by silence.

    Args:
        blocks: waveforms (S,) of any length.
        source_rate: sample rate of the blocks, in Hz.
        target_rate: sample rate of the result, in Hz.

    Shapes:
        yields: (S,) each, never empty, together ceil(samples * target_rate / source_rate).
    """
    resampler = Resampler(source_rate, target_rate)
    for block in blocks:
        if len(out := resampler.feed(block)):
            yield out
    if len(out := resampler.finish()):
        yield out


def resample(waveform: Tensor, source_rate: int, target_rate: int) -> Tensor:
    """Resample a whole waveform, (S,), with the same bits as `resampled`; equal rates return it unchanged."""
    if source_rate == target_rate:
        return waveform
    resampler = Resampler(source_rate, target_rate)
    return torch.cat([resampler.feed(waveform), resampler.finish()])


class Resampler:
    """Resample one waveform in blocks, like `resampled`, for callers that receive blocks rather than iterate over them.

    Up to 41 ms of audio at 44.1 kHz or 48 kHz, 80 ms at 96 kHz and 116 ms at 8 kHz are held back until more arrives.

    Args:
        source_rate: sample rate of the blocks, in Hz.
        target_rate: sample rate of the result, in Hz.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        self._rates = source_rate, target_rate
        is_same = source_rate == target_rate
        self._stream = None if is_same else soxr.ResampleStream(source_rate, target_rate, 1, quality="HQ")
        self._num_read = self._num_written = 0

    def feed(self, block: Tensor) -> Tensor:
        """Return the output samples that can be computed now that this block, (S,), has arrived; there may be none."""
        if self._stream is None:
            return block
        out = self._stream.resample_chunk(block.float().numpy())
        self._num_read += len(block)
        self._num_written += len(out)
        return torch.from_numpy(out)

    def finish(self) -> Tensor:
        """Return the remaining output samples, computed as if silence followed the waveform."""
        if self._stream is None:
            return torch.zeros(0)
        source_rate, target_rate = self._rates
        # libsoxr rounds the number of output samples to the nearest; the silence gives one more to round it up.
        silence = np.zeros(math.ceil(source_rate / target_rate), np.float32)
        rest = -(-self._num_read * target_rate // source_rate) - self._num_written
        return torch.from_numpy(self._stream.resample_chunk(silence, last=True)[:rest])
