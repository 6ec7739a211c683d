"""Log-mel filterbank features, equal to Kaldi's."""

import torch
from torch import Tensor

from asr.components.features.filterbank import LogMel, kaldi_triangles, sharpened
from asr.lengths import Lengths

INT16_SCALE = 2**15  # Kaldi uses 16-bit integers; with samples in [-1, 1], energies of quiet audio would be below FLOOR
MIN_HERTZ = 20.0  # lower edge of the first mel bin
FLOOR = torch.finfo(torch.float32).eps  # lower bound of an energy before its logarithm


class Fbank(LogMel):
    """Log-mel filterbank energies, then normalisation.

    *Source*: Kaldi's compute-fbank-feats with its defaults (Povey window, pre-emphasis 0.97, power spectrum, 20 Hz
    to Nyquist, snip_edges: only windows that lie within the audio), but without dither, so features are deterministic.
    """

    def make_taper(self, num_samples: int) -> Tensor:
        """Return the Povey window: a power of the symmetric Hann window."""
        return torch.hann_window(num_samples, periodic=False, dtype=torch.float64).pow(0.85).float()

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
