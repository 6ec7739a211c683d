"""Log-mel filterbank features, equal to NVIDIA NeMo's."""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate, one_of
from asr.components.features.filterbank import LogMel, sharpened, triangles
from asr.interfaces import Normalization
from asr.lengths import Lengths

FLOOR = 2.0**-24  # added to an energy before its logarithm
LINEAR_HERTZ = 1000.0  # Slaney's mel scale is linear below and logarithmic above
HERTZ_PER_MEL = 200 / 3  # below LINEAR_HERTZ
MELS_PER_OCTAVE = 27 / math.log2(6.4)  # above LINEAR_HERTZ


class SlaneyFbank(LogMel):
    """Log-mel filterbank energies of centred frames, on Slaney's mel scale, then normalisation.

    *Source*: NeMo's AudioToMelSpectrogramPreprocessor (also used by transformers' Parakeet) without dither:
    pre-emphasis over the whole waveform, a symmetric Hann window centred in an FFT whose size is the next power of 2,
    power spectrum, triangles as in Slaney's Auditory Toolbox (1998) from 0 Hz to Nyquist, each with unit area in
    Hz. Frames are centred on multiples of the hop; there is one frame for each complete hop.

    Args, in addition to those of `LogMel`:
        pad_mode: padding around the waveform: "zeros", or "reflect" for the waveform mirrored at its ends.
    """

    def __init__(
        self,
        *,
        sample_rate: SampleRate,
        num_mel_bins: MelBins,
        frame_length_seconds: FrameLength,
        frame_shift_seconds: FrameShift,
        pad_mode: Annotated[str, one_of("zeros", "reflect")],
        normalize: Callable[[], Normalization],
    ) -> None:
        self.pad = pad_mode  # before the base class reads it
        super().__init__(
            sample_rate=sample_rate,
            num_mel_bins=num_mel_bins,
            frame_length_seconds=frame_length_seconds,
            frame_shift_seconds=frame_shift_seconds,
            normalize=normalize,
        )

    def filters(self, hertz: Tensor) -> Tensor:
        """Return triangles with unit area in Hz and corners equidistant on Slaney's mel scale."""
        highest = _to_mel(torch.tensor(self.sample_rate / 2, dtype=torch.float64))
        corners = _to_hertz(torch.linspace(0, 1, self.dim + 2, dtype=torch.float64) * highest)  # (F + 2,)
        return triangles(hertz, corners) * 2 / (corners[2:] - corners[:-2])

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Apply pre-emphasis."""
        return sharpened(waveforms), sample_counts

    def floored(self, energies: Tensor) -> Tensor:
        """Add FLOOR."""
        return energies + FLOOR


def _to_mel(hertz: Tensor) -> Tensor:
    linear = hertz / HERTZ_PER_MEL
    octaves = (hertz / LINEAR_HERTZ).clamp(min=1).log2()
    return linear.clamp(max=LINEAR_HERTZ / HERTZ_PER_MEL) + MELS_PER_OCTAVE * octaves


def _to_hertz(mel: Tensor) -> Tensor:
    above = (mel - LINEAR_HERTZ / HERTZ_PER_MEL).clamp(min=0) / MELS_PER_OCTAVE
    return HERTZ_PER_MEL * mel.clamp(max=LINEAR_HERTZ / HERTZ_PER_MEL) * torch.exp2(above)
