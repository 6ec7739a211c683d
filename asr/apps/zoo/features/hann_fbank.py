"""Log-mel filterbank features of windows that are not centred, equal to those of Google's MedASR."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.filterbank import LogMel, kaldi_triangles
from asr.errors import InputError
from asr.interfaces import Normalization

MIN_HERTZ, MAX_HERTZ = 125.0, 7500.0  # edges of the mel bins
FLOOR = 1e-5  # lower bound of an energy before its logarithm; the samples are in [-1, 1]


class HannFbank(LogMel):
    """Log-mel filterbank energies from 125 to 7500 Hz, then normalisation.

    *Source*: transformers' LasrFeatureExtractor: a symmetric Hann window, no pre-emphasis, an FFT whose size is a
    power of 2, power spectrum, Kaldi's mel triangles. Only windows that lie within the audio are used.

    *Differs from the source*: computed in float32, not float64.

    Args:
        sample_rate: Hz; audio is resampled to this rate; at least 15000, twice the upper edge of the mel bins.
        num_mel_bins: F.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from one frame to the next.
        normalize: makes the normalisation, which is the last step.

    Raises:
        InputError: the sample rate is too low for the mel bins.
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
        if sample_rate < 2 * MAX_HERTZ:
            must = f"features.sample_rate must be at least {2 * MAX_HERTZ:.0f} Hz for features=hann_fbank"
            raise InputError(f"{must}; got {sample_rate}.")
        hann = partial(torch.hann_window, periodic=False)
        super().__init__(
            sample_rate, num_mel_bins, frame_length_seconds, frame_shift_seconds, normalize, taper=hann, pad=None
        )

    def filters(self, hertz: Tensor) -> Tensor:
        """Return Kaldi's triangles."""
        return kaldi_triangles(hertz, self.dim, MIN_HERTZ, MAX_HERTZ)

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies to at least FLOOR."""
        return energies.clamp(min=FLOOR)
