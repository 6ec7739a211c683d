"""Another sample rate, any for any, for a waveform that comes in blocks: their borders leave no trace in the result.

Each new sample is the sum of the old ones around it, weighted by a Kaiser-windowed sinc with the parameters that
torchaudio's documentation gives for resampy's 'kaiser_best'. It costs little more than torchaudio's default (4 ms for
15 s from 44.1 kHz) and lets far less alias.

Pass band: of the lower of both rates, frequencies up to 0.45 are kept within 0.02 dB; from 0.507 on they are gone, by
100 dB and more. To 16 kHz that is 7.2 kHz and 8.1 kHz; in between 7.5 kHz loses 3 dB, 7.58 kHz 6 dB, 7.9 kHz 39 dB.
"""

import functools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

ZERO_CROSSINGS = 64  # of the sinc, to either side
ROLLOFF = 0.9475937167399596  # the frequency that loses 6 dB, as a share of half the lower rate
BETA = 14.769656459379492  # of the window

MAX_KERNEL_SIZE = 1 << 19  # numbers in the kernel of a simple ratio, its reach not counted: 2 MiB
NUM_KERNELS = 8  # that are kept, of a few MiB at most, whatever rates come
GRID = 8  # points for a sample of the lower rate, at least
POINTS = 8  # of the grid, for a new sample. So samples in [-1, 1] are right within 2e-6, as with a kernel in float32
PHASES = 64  # of a kernel, at least, where there is a choice: fewer take longer


def resampled(
    blocks: Iterable[Tensor], source_rate: int, target_rate: int, piece_seconds: float = 1.0
) -> Iterator[Tensor]:
    """Resample consecutive blocks of one waveform as if they were joined, and silence surrounded them.

    The result is computed in pieces of a second, counted from the beginning, so it is the same to the bit however the
    waveform is cut into blocks; the last piece is what remains. No more is held than a piece, the reach of the kernel
    and one block.

    Args:
        blocks: (S,) each, of any length.
        source_rate: theirs, in Hz.
        target_rate: that it shall be, in Hz.
        piece_seconds: of a piece; who cannot wait for a second of sound chooses less.

    Shapes:
        yields: (S,) each, together ceil(samples * target_rate / source_rate).
    """
    resampler = Resampler(source_rate, target_rate, piece_seconds)
    for block in blocks:
        yield from resampler.feed(block)
    yield from resampler.finish()


class Resampler:
    """Resample one waveform that comes in blocks, as `resampled` does, for who is given them and cannot ask for them.

    Args:
        source_rate: of the blocks, in Hz.
        target_rate: in Hz.
        piece_seconds: that are computed at once; None: what a block completes, which leaves the last bits to the cuts.
    """

    def __init__(self, source_rate: int, target_rate: int, piece_seconds: float | None = None) -> None:
        common = math.gcd(source_rate, target_rate)
        hop, new = source_rate // common, target_rate // common
        self._way: _Convolution | _Interpolation | None = None
        if source_rate == target_rate:
            return
        if hop * new <= MAX_KERNEL_SIZE:
            self._way = _Convolution(source_rate, target_rate, hop, new, piece_seconds)
        else:  # a kernel of its own for each of so many samples would be huge
            self._way = _Interpolation(source_rate, target_rate, piece_seconds)

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield what a block completes, (S,) each."""
        yield from (block,) if self._way is None else self._way.feed(block)

    def finish(self) -> Iterator[Tensor]:
        """Yield what is left, with silence behind it. The waveform is over."""
        yield from () if self._way is None else self._way.finish()


class _Convolution:
    """Filter for a target rate; compute `new` samples in place of each `hop`, whatever rate that gives.

    Args:
        piece_seconds: as for `Resampler`.
        margin: hops of the silence on either side that are computed, too.
    """

    def __init__(
        self, source_rate: int, target_rate: int, hop: int, new: int, piece_seconds: float | None, margin: int = 0
    ) -> None:
        self._kernel, self._reach = _kernel(source_rate, target_rate, hop, new)
        self._hop, self._new, self._margin = hop, new, margin
        self._piece = None if piece_seconds is None else max(1, int(source_rate * piece_seconds) // hop) * hop
        # What the next sample to be computed depends on, as far as it is here.
        self._waiting = torch.zeros(self._reach + margin * hop)
        self._num_read = self._num_written = 0

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield what a block completes."""
        self._num_read += len(block)
        self._waiting = torch.cat([self._waiting, block])
        while size := self._complete():
            yield _convolve(self._waiting[: size + 2 * self._reach], self._kernel, self._hop)
            self._waiting = self._waiting[size:]
            self._num_written += size // self._hop * self._new

    def _complete(self) -> int:
        """How many samples can be replaced now."""
        size = max(0, len(self._waiting) - 2 * self._reach)
        if self._piece is None:
            return size // self._hop * self._hop
        return self._piece if size >= self._piece else 0

    def finish(self) -> Iterator[Tensor]:
        """Yield what is left."""
        margin = self._margin * self._hop
        rest = -(-self._num_read * self._new // self._hop) + 2 * self._margin * self._new - self._num_written
        if rest > 0:
            waiting = torch.nn.functional.pad(self._waiting, (0, self._reach + self._hop + margin))
            yield _convolve(waiting, self._kernel, self._hop)[:rest]


def _convolve(waveform: Tensor, kernel: Tensor, hop: int) -> Tensor:
    return torch.nn.functional.conv1d(waveform[None, None], kernel, stride=hop)[0].T.reshape(-1)  # (new, hops) -> (S,)


@functools.lru_cache(maxsize=NUM_KERNELS)
def _kernel(source_rate: int, target_rate: int, hop: int, new: int) -> tuple[Tensor, int]:
    """Windowed sincs around `new` moments of a hop; for a simple ratio they are torchaudio's, to the bit.

    Shapes:
        returns: (new, 1, reach + hop + reach), and how many samples the kernel reaches to either side.
    """
    crossings = ROLLOFF * (min(source_rate, target_rate) * hop / source_rate)  # of zero, in a hop
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
    """Filter onto a fine grid, of a simple ratio to the source, and read the new samples off between its points.

    The filter leaves nothing above half the lower rate, so from point to point the grid is as smooth as a polynomial.
    """

    def __init__(self, source_rate: int, target_rate: int, piece_seconds: float | None) -> None:
        lower = min(source_rate, target_rate)
        hop, new = max(1, source_rate // (GRID * lower)), -(-GRID * lower // source_rate)  # one of them is 1
        hop, new = hop * -(-PHASES // new), new * -(-PHASES // new)
        self._source_rate, self._target_rate = source_rate, target_rate
        self._step, self._unit = source_rate * new, target_rate * hop  # step / unit points of the grid to the next one
        self._num_read = self._num_written = 0
        self._grid = _Convolution(source_rate, target_rate, hop, new, piece_seconds, margin=1)
        self._waiting = torch.zeros(0)
        self._first = -new  # point of the grid that it begins with: those in the silence are negative

    def feed(self, block: Tensor) -> Iterator[Tensor]:
        """Yield what a block completes."""
        self._num_read += len(block)
        for grid in self._grid.feed(block):
            yield from self._read_off(grid)

    def finish(self) -> Iterator[Tensor]:
        """Yield what is left."""
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
    """Evaluate Lagrange's polynomials through POINTS points of a grid, half of them on either side of a place.

    Shapes:
        grid: (G,)
        index, fraction: (S,), of the point before the place, and how far it is from there to the next.
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
