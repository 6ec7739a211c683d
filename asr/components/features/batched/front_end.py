"""Features of a padded batch of waveforms, for exported models and for computation on the device.

`asr.components.features` computes one utterance without padding. This module computes a padded batch with masks, using
only operations that every runtime has: the Fourier transform is a matrix product. The two results agree within float32
precision.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.components.features.fbank import FLOOR, INT16_SCALE, PREEMPHASIS, Fbank
from asr.components.features.hann_fbank import FLOOR as HANN_FLOOR
from asr.components.features.hann_fbank import HannFbank
from asr.components.features.htk_fbank import FLOOR as HTK_FLOOR
from asr.components.features.htk_fbank import HTKFbank
from asr.components.features.slaney_fbank import FLOOR as SLANEY_FLOOR
from asr.components.features.slaney_fbank import PREEMPHASIS as SLANEY_PREEMPHASIS
from asr.components.features.slaney_fbank import SlaneyFbank
from asr.errors import InputError
from asr.interfaces import Features
from asr.lengths import padding_mask


class FrontEnd(nn.Module):
    """Map waveforms (B, S) and sample_counts (B,) to features (B, T, F) and feature_lengths (B,).

    Samples after an utterance's end, including NaN, have no effect.

    Args:
        features: computes the features of a single utterance.

    Raises:
        InputError: the features have no batched form.
    """

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.energies = _energies(features)
        self.normalize = features.normalize.batched
        self.num_frames = features.num_frames

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and lengths; the features have at least one frame, which may be padding."""
        padding = padding_mask(sample_counts, waveforms.shape[1])
        energies = self.energies(waveforms.masked_fill(padding, 0.0), sample_counts)  # (B, T, F)
        lengths = self.num_frames(sample_counts)
        return self.normalize(energies, padding_mask(lengths, energies.shape[1])), lengths


class BatchedFbank(nn.Module):
    """Log-mel energies of `Fbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: Fbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.register_buffer("fourier", fourier(features.povey, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        frames = framed(waveforms * INT16_SCALE, self.window, self.hop)  # (B, T, window)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        sharper = frames - PREEMPHASIS * F.pad(frames, (1, 0))[..., :-1]  # sample 0 has no effect: its weight is 0
        return (power(sharper @ self.fourier) @ self.mel).clamp(min=FLOOR).log()


class BatchedSlaneyFbank(nn.Module):
    """Log-mel energies of `SlaneyFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: SlaneyFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.pad = PADS[features.pad_mode]
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        sharper = waveforms - SLANEY_PREEMPHASIS * F.pad(waveforms, (1, 0))[:, :-1]
        centred = self.pad(sharper, sample_counts, (self.window + 1) // 2)
        return (power(framed(centred, self.window, self.hop) @ self.fourier) @ self.mel + SLANEY_FLOOR).log()


class BatchedHTKFbank(nn.Module):
    """Log-mel energies of `HTKFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: HTKFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.num_samples = features.num_samples
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        counts = self.num_samples(sample_counts)
        centred = PADS["reflect"](F.pad(waveforms, (0, 1)), counts, (self.window + 1) // 2)
        return (power(framed(centred, self.window, self.hop) @ self.fourier) @ self.mel).clamp(min=HTK_FLOOR).log()


class BatchedHannFbank(nn.Module):
    """Log-mel energies of `HannFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: HannFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        frames = framed(waveforms, self.window, self.hop)  # (B, T, window)
        return (power(frames @ self.fourier) @ self.mel).clamp(min=HANN_FLOOR).log()


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


def power(spectrum: Tensor) -> Tensor:
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


PADS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {"zeros": _zeros, "reflect": _reflected}
ENERGIES: dict[type, Callable[..., nn.Module]] = {
    Fbank: BatchedFbank,
    SlaneyFbank: BatchedSlaneyFbank,
    HTKFbank: BatchedHTKFbank,
    HannFbank: BatchedHannFbank,
}


def _energies(features: Features) -> nn.Module:
    if type(features) not in ENERGIES:
        names = ", ".join(kind.__name__ for kind in ENERGIES)
        must = f"features that are exported, or computed on a device, must be one of {names}"
        raise InputError(f"{must}; got {type(features).__name__}.")
    return ENERGIES[type(features)](features)
