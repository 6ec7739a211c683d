"""Log-mel filterbank features of audio that is mirrored at both ends, equal to those of lhotse and icefall."""

from torch import Tensor

from asr.components.features.fbank import MIN_HERTZ, Fbank
from asr.components.features.filterbank import kaldi_triangles
from asr.lengths import Lengths

BELOW_NYQUIST = 400.0  # Hz from the upper edge of the last mel bin to Nyquist


class MirroredFbank(Fbank):
    """Kaldi's log-mel filterbank energies with one frame for each shift, then normalisation.

    A frame is centred on the middle of its shift; before the first and after the last sample, the audio is mirrored.

    *Source*: lhotse's Fbank with its defaults, which are those of icefall's recipes: samples in [-1, 1], Povey window,
    pre-emphasis 0.97, power spectrum, 20 Hz to 400 Hz below Nyquist, snip_edges false, no dither.
    """

    pad = "mirror"

    def samples_before(self) -> int:
        """Return the number of samples of a frame before its shift, which is in its middle."""
        return max(0, self.window - self.hop) // 2

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        return (num_samples + self.hop // 2) // self.hop

    def filters(self, hertz: Tensor) -> Tensor:
        """Return Kaldi's triangles from 20 Hz to 400 Hz below Nyquist."""
        return kaldi_triangles(hertz, self.dim, MIN_HERTZ, max(2 * MIN_HERTZ, self.sample_rate / 2 - BELOW_NYQUIST))

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Return the samples, in [-1, 1], unchanged."""
        return waveforms, sample_counts
