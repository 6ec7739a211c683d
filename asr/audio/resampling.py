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


def resampled(blocks: Iterable[Tensor], source_rate: int, target_rate: int) -> Iterator[Tensor]:
    """Resample consecutive blocks of one waveform as if they were joined, and silence surrounded them.

    The result is computed a second at a time, counted from the beginning, so it is the same to the bit however the
    waveform is cut into blocks; the last piece is what remains. No more is held than a second, the reach of the
    kernel and one block.

    Args:
        blocks: (S,) each, of any length.

    Shapes:
        yields: (S,) each, together ceil(samples * target_rate / source_rate).
    """
    common = math.gcd(source_rate, target_rate)
    hop, new = source_rate // common, target_rate // common
    if source_rate == target_rate:
        yield from blocks
    elif hop * new <= MAX_KERNEL_SIZE:
        yield from _convolved(blocks, source_rate, target_rate, hop, new)
    else:  # a kernel of its own for each of so many samples would be huge
        yield from _interpolated(blocks, source_rate, target_rate)


def _convolved(
    blocks: Iterable[Tensor], source_rate: int, target_rate: int, hop: int, new: int, margin: int = 0
) -> Iterator[Tensor]:
    """Filter for a target rate; compute `new` samples in place of each `hop`, whatever rate that gives.

    Args:
        margin: hops of the silence on either side that are computed, too.
    """
    kernel, reach = _kernel(source_rate, target_rate, hop, new)
    period = max(1, source_rate // hop) * hop  # samples of a second, or nearly
    waiting = torch.zeros(reach + margin * hop)  # what the next sample to be computed depends on, as far as it is here
    num_read = num_written = 0
    for block in blocks:
        num_read += len(block)
        waiting = torch.cat([waiting, block])
        while len(waiting) >= period + 2 * reach:
            yield _convolve(waiting[: period + 2 * reach], kernel, hop)
            waiting = waiting[period:]
            num_written += period // hop * new
    rest = -(-num_read * new // hop) + 2 * margin * new - num_written
    if rest > 0:
        yield _convolve(torch.nn.functional.pad(waiting, (0, reach + hop + margin * hop)), kernel, hop)[:rest]


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


def _interpolated(blocks: Iterable[Tensor], source_rate: int, target_rate: int) -> Iterator[Tensor]:
    """Filter onto a fine grid, of a simple ratio to the source, and read the new samples off between its points.

    The filter leaves nothing above half the lower rate, so from point to point the grid is as smooth as a polynomial.
    """
    lower = min(source_rate, target_rate)
    hop, new = max(1, source_rate // (GRID * lower)), -(-GRID * lower // source_rate)  # one of them is 1
    hop, new = hop * -(-PHASES // new), new * -(-PHASES // new)
    step, unit = source_rate * new, target_rate * hop  # step / unit points of the grid to the next new sample
    num_read = num_written = 0

    def counted() -> Iterator[Tensor]:
        nonlocal num_read
        for block in blocks:
            num_read += len(block)
            yield block

    waiting, first = torch.zeros(0), -new  # which point of the grid it begins with: those in the silence are negative
    for grid in _convolved(counted(), source_rate, target_rate, hop, new, margin=1):
        waiting = torch.cat([waiting, grid])
        within = -(-(first + len(waiting) - POINTS // 2) * unit // step)
        end = min(within, -(-num_read * target_rate // source_rate))
        if end > num_written:
            position = torch.arange(num_written, end) * step
            yield _polynomial(waiting, position // unit - first, (position % unit).double() / unit)
            num_written = end
            used = min(end * step // unit - POINTS // 2 + 1 - first, len(waiting))
            waiting, first = waiting[used:], first + used


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
