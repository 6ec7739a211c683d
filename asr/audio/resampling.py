"""Conversion between any two sample rates, block by block.

The bits of the result depend neither on the size of the blocks nor on the number of threads.

Each output sample is a sum of the input samples around it, weighted by a Kaiser-windowed sinc with the parameters that
torchaudio's documentation gives for resampy's 'kaiser_best'. For 15 s from 44.1 kHz this takes a few milliseconds more
than torchaudio's default, with far less aliasing.

Frequencies up to 0.45 times the lower rate change by at most 0.02 dB; frequencies above 0.507 times the lower rate are
attenuated by 100 dB or more. If the lower rate is 16 kHz, these limits are 7.2 kHz and 8.1 kHz; between them the
attenuation is 3 dB at 7.5 kHz, 6 dB at 7.58 kHz, and 39 dB at 7.9 kHz.
"""

import functools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from asr.system.processes import torch_threads

ZERO_CROSSINGS = 64  # number of zero crossings of the sinc on each side
ROLLOFF = 0.9475937167399596  # frequency with a loss of 6 dB, relative to half the lower rate
BETA = 14.769656459379492  # parameter of the Kaiser window

# A kernel computes `new` output samples from every `hop` input samples. This is the maximum of hop * new, the number of
# its coefficients without those for the samples before and after the hop (2 MiB in float32).
MAX_KERNEL_SIZE = 1 << 19
NUM_KERNELS = 8  # number of cached kernels, each of a few MiB at most
# Settings of `_Interpolation`.
GRID = 8  # minimum number of grid points per sample at the lower rate
POINTS = 8  # number of grid points that determine an output sample; errors are below 2e-6, as in a float32 kernel
PHASES = 64  # minimum number of filters in the kernel; kernels with fewer filters are slower


def resampled(
    blocks: Iterable[Tensor], source_rate: int, target_rate: int, piece_seconds: float = 1.0
) -> Iterator[Tensor]:
    """Resample consecutive blocks of one waveform as if they were joined and surrounded by silence.

    The result is computed in pieces of `piece_seconds`, so its bits do not depend on the division into blocks; the
    last piece may be shorter. Memory is bounded by a piece, the length of the kernel and one block.

    Args:
        blocks: waveforms (S,) of any length.
        source_rate: sample rate of the blocks, in Hz.
        target_rate: sample rate of the result, in Hz.
        piece_seconds: length of a piece; shorter pieces have less latency.

    Shapes:
        yields: (S,) each, together ceil(samples * target_rate / source_rate).
    """
    resampler = Resampler(source_rate, target_rate, piece_seconds)
    for block in blocks:
        yield from resampler.feed(block)
    yield from resampler.finish()


class Resampler:
    """Resample one waveform in blocks, like `resampled`, for callers that receive blocks rather than iterate over them.

    Args:
        source_rate: sample rate of the blocks, in Hz.
        target_rate: sample rate of the result, in Hz.
        piece_seconds: length of a piece, as for `resampled`; None: each block is a piece, so the least significant bits
            of the samples depend on the division into blocks.
    """

    def __init__(self, source_rate: int, target_rate: int, piece_seconds: float | None = None) -> None:
        common = math.gcd(source_rate, target_rate)
        hop, new = source_rate // common, target_rate // common
        self._way: _Convolution | _Interpolation | None = None
        if source_rate == target_rate:
            return
        if hop * new <= MAX_KERNEL_SIZE:
            self._way = _Convolution(source_rate, target_rate, hop, new, piece_seconds)
        else:  # a kernel with a filter for each of the `new` samples would be huge
            self._way = _Interpolation(source_rate, target_rate, piece_seconds)

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield the output samples that can be computed now that this block has arrived, (S,) each."""
        yield from (block,) if self._way is None else self._way.feed(block)

    def finish(self) -> Iterator[Tensor]:
        """Yield the remaining output samples, computed as if silence followed the waveform."""
        yield from () if self._way is None else self._way.finish()


class _Convolution:
    """Compute `new` output samples for each `hop` input samples, with a low-pass filter for `target_rate`.

    The rate of the output is source_rate * new / hop, which may differ from `target_rate`.

    Args:
        piece_seconds: as for `Resampler`.
        margin: number of hops by which the output extends beyond each end of the waveform; the input beyond the ends
            is silence.
    """

    def __init__(
        self, source_rate: int, target_rate: int, hop: int, new: int, piece_seconds: float | None, margin: int = 0
    ) -> None:
        self._kernel, self._reach = _kernel(source_rate, target_rate, hop, new)
        self._hop, self._new, self._margin = hop, new, margin
        self._piece = None if piece_seconds is None else max(1, int(source_rate * piece_seconds) // hop) * hop
        # Received input samples that the next output samples depend on.
        self._waiting = torch.zeros(self._reach + margin * hop)
        self._num_read = self._num_written = 0

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield the output samples that can be computed now that this block has arrived."""
        self._num_read += len(block)
        self._waiting = torch.cat([self._waiting, block])
        while size := self._complete():
            yield _convolve(self._waiting[: size + 2 * self._reach], self._kernel, self._hop)
            self._waiting = self._waiting[size:]
            self._num_written += size // self._hop * self._new

    def _complete(self) -> int:
        """Return how many input samples can be resampled now: a multiple of the hop, or one piece; 0: too few."""
        size = max(0, len(self._waiting) - 2 * self._reach)
        if self._piece is None:
            return size // self._hop * self._hop
        return self._piece if size >= self._piece else 0

    def finish(self) -> Iterator[Tensor]:
        """Yield the remaining output samples."""
        margin = self._margin * self._hop
        rest = -(-self._num_read * self._new // self._hop) + 2 * self._margin * self._new - self._num_written
        if rest > 0:
            waiting = torch.nn.functional.pad(self._waiting, (0, self._reach + self._hop + margin))
            yield _convolve(waiting, self._kernel, self._hop)[:rest]


def _convolve(waveform: Tensor, kernel: Tensor, hop: int) -> Tensor:
    with torch_threads(1):  # as in a DataLoader's worker; rounding depends on the number of threads
        out = torch.nn.functional.conv1d(waveform[None, None], kernel, stride=hop)[0]  # (new, hops)
    return out.T.reshape(-1)  # (S,)


@functools.lru_cache(maxsize=NUM_KERNELS)
def _kernel(source_rate: int, target_rate: int, hop: int, new: int) -> tuple[Tensor, int]:
    """Return a windowed sinc for each of the `new` output samples of a hop.

    If hop / new is the ratio of the two rates, the sincs equal torchaudio's bit for bit.

    Shapes:
        returns: (new, 1, reach + hop + reach), and `reach`, the number of samples that the kernel covers on each side
            of the hop.
    """
    crossings = ROLLOFF * (min(source_rate, target_rate) * hop / source_rate)  # zero crossings per hop
    reach = math.ceil(ZERO_CROSSINGS * hop / crossings)
    samples = torch.arange(-reach, hop + reach, dtype=torch.float64) / hop
    moments = torch.arange(0, -new, -1, dtype=torch.float64)[:, None, None] / new
    distance = ((moments + samples) * crossings).clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS)
    beta = torch.tensor(BETA)
    window = torch.i0(beta * torch.sqrt(1 - (distance / ZERO_CROSSINGS) ** 2)) / torch.i0(beta)
    angle = distance * math.pi
    sinc = torch.where(angle == 0, 1.0, angle.sin() / angle)
    return (sinc * (window * (crossings / hop))).float(), reach


class _Interpolation:
    """Resample to a fine grid, whose rate has a simple ratio to the source rate; interpolate the output from the grid.

    The filter removes everything above half the lower rate, so the values on the grid are smooth enough for
    interpolation by polynomials.
    """

    def __init__(self, source_rate: int, target_rate: int, piece_seconds: float | None) -> None:
        lower = min(source_rate, target_rate)
        hop, new = max(1, source_rate // (GRID * lower)), -(-GRID * lower // source_rate)  # hop or new is 1
        hop, new = hop * -(-PHASES // new), new * -(-PHASES // new)
        self._source_rate, self._target_rate = source_rate, target_rate
        self._step, self._unit = source_rate * new, target_rate * hop  # step / unit: grid points per output sample
        self._num_read = self._num_written = 0
        self._grid = _Convolution(source_rate, target_rate, hop, new, piece_seconds, margin=1)
        self._waiting = torch.zeros(0)
        self._first = -new  # index of the first grid point in `_waiting`; negative before the waveform begins

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield the output samples that can be computed now that this block has arrived."""
        self._num_read += len(block)
        for grid in self._grid.feed(block):
            yield from self._read_off(grid)

    def finish(self) -> Iterator[Tensor]:
        """Yield the remaining output samples."""
        for grid in self._grid.finish():
            yield from self._read_off(grid)

    def _read_off(self, grid: Tensor) -> Iterator[Tensor]:
        step, unit = self._step, self._unit
        self._waiting = torch.cat([self._waiting, grid])
        within = -(-(self._first + len(self._waiting) - POINTS // 2) * unit // step)
        end = min(within, -(-self._num_read * self._target_rate // self._source_rate))
        if end > self._num_written:
            position = torch.arange(self._num_written, end) * step
            yield _polynomial(self._waiting, position // unit - self._first, (position % unit).double() / unit)
            self._num_written = end
            used = min(end * step // unit - POINTS // 2 + 1 - self._first, len(self._waiting))
            self._waiting, self._first = self._waiting[used:], self._first + used


def _polynomial(grid: Tensor, index: Tensor, fraction: Tensor) -> Tensor:
    """Evaluate Lagrange polynomials through the POINTS grid points around each position, half of them on each side.

    Shapes:
        grid: (G,)
        index: (S,), the last grid point that is not after the position.
        fraction: (S,), distance from this grid point to the position, in grid steps.
        returns: (S,)
    """
    points = range(1 - POINTS // 2, 1 + POINTS // 2)
    value = torch.zeros_like(fraction)
    for point in points:
        weight = torch.ones_like(fraction)
        for other in points:
            if other != point:
                weight *= (fraction - other) / (point - other)
        value += weight * grid[index + point]
    return value.float()
