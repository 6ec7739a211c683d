"""Log-mel filterbank features of windows that are not centred, equal to those of Google's MedASR."""

from torch import Tensor

from asr.components.features.filterbank import LogMel, kaldi_triangles
from asr.errors import InputError

MIN_HERTZ, MAX_HERTZ = 125.0, 7500.0  # edges of the mel bins
FLOOR = 1e-5  # lower bound of an energy before its logarithm; the samples are in [-1, 1]


class HannFbank(LogMel):
    """Log-mel filterbank energies from 125 to 7500 Hz, then normalisation.

    *Source*: transformers' LasrFeatureExtractor: a symmetric Hann window, no pre-emphasis, an FFT whose size is a
    power of 2, power spectrum, Kaldi's mel triangles. Only windows that lie within the audio are used.

    *Differs from the source*: computed in float32, not float64.

    Raises:
        InputError: the sample rate is less than twice the upper edge of the mel bins.
    """

    def filters(self, hertz: Tensor) -> Tensor:
        """Return Kaldi's triangles."""
        if self.sample_rate < 2 * MAX_HERTZ:
            must = f"features.sample_rate must be at least {2 * MAX_HERTZ:.0f} Hz for features=hann_fbank"
            raise InputError(f"{must}; got {self.sample_rate}.")
        return kaldi_triangles(hertz, self.dim, MIN_HERTZ, MAX_HERTZ)

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies to at least FLOOR."""
        return energies.clamp(min=FLOOR)
