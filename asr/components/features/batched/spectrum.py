"""Power spectra of a padded batch of waveforms, by operations that every runtime has."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.lengths import padding_mask


def framed(waveforms: Tensor, window: int, hop: int) -> Tensor:
    """Map (B, S) to frames (B, T, window); a frame begins at each multiple of `hop`.

    The waveforms are padded with zeros at the end.
    """
    num_hops = math.ceil(window / hop)
    count = waveforms.shape[1] // hop + 1
    padded = F.pad(waveforms, (0, num_hops * hop))[:, : (count + num_hops - 1) * hop]
    hops = padded.unflatten(1, (count + num_hops - 1, hop))
    return torch.cat([hops[:, first : first + count] for first in range(num_hops)], dim=2)[..., :window]


def fourier(window: Tensor, points: int) -> Tensor:
    """Return the windowed Fourier transform as a matrix (window, 2 * FFT bins), real parts first."""
    sample = torch.arange(len(window), dtype=torch.float64)[:, None]
    angle = 2 * math.pi * (sample * torch.arange(points // 2 + 1) % points) / points
    return (window.double()[:, None] * torch.cat([angle.cos(), -angle.sin()], dim=1)).float()


def power_spectrum(spectrum: Tensor) -> Tensor:
    """Compute the power spectrum: map (..., 2 * FFT bins) to (..., FFT bins)."""
    real, imaginary = spectrum.square().chunk(2, dim=-1)
    return real + imaginary


def _zeros(waveforms: Tensor, sample_counts: Tensor, before: int) -> Tensor:
    """Prepend `before` zeros and set padding to zero."""
    padding = padding_mask(sample_counts, waveforms.shape[1])
    return F.pad(waveforms.masked_fill(padding, 0.0), (before, 0))


def _reflected(waveforms: Tensor, sample_counts: Tensor, before: int) -> Tensor:
    """Mirror each waveform at its first and last sample, repeatedly if it is short."""
    index = torch.arange(-before, waveforms.shape[1] + before, device=waveforms.device)
    period = (2 * (sample_counts - 1)).clamp(min=1)[:, None]
    inside = index % period  # (B, before + S + before)
    return F.pad(waveforms, (0, 1)).gather(1, torch.minimum(inside, period - inside))


def _mirrored(waveforms: Tensor, sample_counts: Tensor, before: int) -> Tensor:
    """Mirror each waveform before its first and after its last sample, repeatedly if it is short."""
    index = torch.arange(-before, waveforms.shape[1] + 2 * before, device=waveforms.device)
    inside = index % (2 * sample_counts).clamp(min=1)[:, None]
    return F.pad(waveforms, (0, 1)).gather(1, torch.minimum(inside, (2 * sample_counts[:, None] - 1 - inside).abs()))


PADS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "zeros": _zeros,
    "reflect": _reflected,
    "mirror": _mirrored,
}
