"""Log-mel filterbank features, equal to Kaldi's."""

from collections.abc import Callable

import torch
from torch import Tensor

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.filterbank import LogMel, kaldi_triangles, sharpened
from asr.interfaces import Normalization
from asr.lengths import Lengths

INT16_SCALE = 2**15  # Kaldi uses 16-bit integers; with samples in [-1, 1], energies of quiet audio would be below FLOOR
MIN_HERTZ = 20.0  # lower edge of the first mel bin
FLOOR = torch.finfo(torch.float32).eps  # lower bound of an energy before its logarithm


class Fbank(LogMel):
    """Log-mel filterbank energies, then normalisation.

    *Source*: Kaldi's compute-fbank-feats with its defaults (Povey window, pre-emphasis 0.97, power spectrum, 20 Hz
    to Nyquist, snip_edges: only windows that lie within the audio), but without dither, so features are deterministic.

    Args:
        sample_rate: Hz; audio is resampled to this rate.
        num_mel_bins: F.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from one frame to the next.
        normalize: makes the normalisation, which is the last step.
    """

    def __init__(
        self,
        *,
        sample_rate: SampleRate,
        num_mel_bins: MelBins,
        frame_length_seconds: FrameLength,
        frame_shift_seconds: FrameShift,
        normalize: Callable[[], Normalization],
    ) -> None:
        super().__init__(
            sample_rate, num_mel_bins, frame_length_seconds, frame_shift_seconds, normalize, taper=povey, pad=None
        )

    def filters(self, hertz: Tensor) -> Tensor:
        """Return Kaldi's triangles from 20 Hz to Nyquist."""
        return kaldi_triangles(hertz, self.dim, MIN_HERTZ, self.sample_rate / 2)

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Scale the samples to 16-bit units."""
        return waveforms * INT16_SCALE, sample_counts

    def frames(self, frames: Tensor) -> Tensor:
        """Subtract the mean of each frame, and apply pre-emphasis; sample 0 has no effect: the window is 0 there."""
        return sharpened(frames - frames.mean(dim=-1, keepdim=True))

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies to at least FLOOR."""
        return energies.clamp(min=FLOOR)


def povey(samples: int) -> Tensor:
    """Return the Povey window, (samples,): a power of the symmetric Hann window."""
    return torch.hann_window(samples, periodic=False, dtype=torch.float64).pow(0.85).float()
