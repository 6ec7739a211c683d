"""Log-mel filterbank features, equal to those of transformers' Granite Speech 5."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.components.features.filterbank import LogMel, triangles
from asr.lengths import Lengths

FLOOR = 1e-10  # lower bound of an energy before its logarithm
BREAK_HERTZ = 700.0  # HTK's mel scale is nearly linear below, and nearly logarithmic above


class HTKFbank(LogMel):
    """Log-mel filterbank energies of centred frames, on HTK's mel scale, then normalisation.

    *Source*: torchaudio's MelSpectrogram with its defaults, as in transformers' GraniteSpeech5FeatureExtractor: no
    pre-emphasis, a periodic Hann window centred in an FFT whose size is the next power of 2, the waveform mirrored at
    its ends, power spectrum, triangles of height 1 from 0 Hz to Nyquist. Frames are centred on multiples of the hop;
    there is one frame for each complete hop, and one more if their number is odd, because the encoder reads pairs. If
    this frame begins at the waveform's end, a sample of silence is appended.
    """

    pad = "reflect"

    def make_taper(self, num_samples: int) -> Tensor:
        """Return a periodic Hann window, (num_samples,)."""
        return torch.hann_window(num_samples)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor), which is even."""
        return (num_samples // self.hop + 1) // 2 * 2

    def filters(self, hertz: Tensor) -> Tensor:
        """Return triangles of height 1 with corners equidistant on HTK's mel scale."""
        highest = torch.tensor(self.sample_rate / 2 / BREAK_HERTZ, dtype=torch.float64).log1p()
        corners = BREAK_HERTZ * (torch.linspace(0, 1, self.dim + 2, dtype=torch.float64) * highest).expm1()
        return triangles(hertz, corners)

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Append a sample; it counts if the last frame would begin after the samples."""
        return F.pad(waveforms, (0, 1)), sample_counts + (sample_counts % (2 * self.hop) == self.hop)

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies to at least FLOOR."""
        return energies.clamp(min=FLOOR)
