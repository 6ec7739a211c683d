"""Log-mel filterbank features, equal to Kaldi's."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import SWITCH, FrameLength, FrameShift, MelBins, SampleRate, number
from asr.components.features.filterbank import LogMel, kaldi_triangles, sharpened
from asr.errors import InputError
from asr.interfaces import Normalization
from asr.lengths import Lengths

MIN_HERTZ = 20.0  # lower edge of the first mel bin
FLOOR = torch.finfo(torch.float32).eps  # lower bound of an energy before its logarithm


class Fbank(LogMel):
    """Log-mel filterbank energies, then normalisation.

    *Source*: Kaldi's compute-fbank-feats with its defaults (Povey window, pre-emphasis 0.97, power spectrum), but
    without dither, so features are deterministic.

    Args, in addition to those of `LogMel`:
        snip_edges: true: a frame begins at each multiple of the hop, and only windows that lie within the audio are
            used; false: one frame for each hop, centred on its middle, of audio that is mirrored before the first and
            after the last sample.
        high_hertz: upper edge of the last mel bin in Hz; 0 or less: relative to half the sample rate.
        full_scale: value of a sample at full scale. The energies grow with its square, FLOOR does not: with 1, FLOOR
            is above the energies of quiet audio.

    Raises:
        InputError: the upper edge is not between the lower edge and half the sample rate.
    """

    def __init__(
        self,
        *,
        sample_rate: SampleRate,
        num_mel_bins: MelBins,
        frame_length_seconds: FrameLength,
        frame_shift_seconds: FrameShift,
        snip_edges: Annotated[bool, SWITCH],
        high_hertz: Annotated[float, number(-96_000, 96_000)],
        full_scale: Annotated[float, number(1, 32_768)],
        normalize: Callable[[], Normalization],
    ) -> None:
        self.pad = None if snip_edges else "mirror"  # before the base class reads it
        self.high_hertz = high_hertz
        self.full_scale = full_scale
        super().__init__(
            sample_rate=sample_rate,
            num_mel_bins=num_mel_bins,
            frame_length_seconds=frame_length_seconds,
            frame_shift_seconds=frame_shift_seconds,
            normalize=normalize,
        )

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        if self.pad is not None:
            return (num_samples + self.hop // 2) // self.hop
        return super().num_frames(num_samples)

    def samples_before(self) -> int:
        """Return the number of samples of a frame before its hop: the frame is centred on the middle of the hop."""
        return max(0, self.window // 2 - self.hop // 2) if self.pad is not None else 0

    def make_taper(self, num_samples: int) -> Tensor:
        """Return the Povey window: a power of the symmetric Hann window."""
        return torch.hann_window(num_samples, periodic=False, dtype=torch.float64).pow(0.85).float()

    def filters(self, hertz: Tensor) -> Tensor:
        """Return Kaldi's triangles from 20 Hz to the upper edge."""
        nyquist = self.sample_rate / 2
        upper = self.high_hertz if self.high_hertz > 0 else nyquist + self.high_hertz
        if not MIN_HERTZ < upper <= nyquist:
            must = f"features.high_hertz must be a frequency above {MIN_HERTZ:g} and up to {nyquist:g} Hz, or relative"
            raise InputError(f"{must} to {nyquist:g} Hz if it is 0 or less; got {self.high_hertz:g}.")
        return kaldi_triangles(hertz, self.dim, MIN_HERTZ, upper)

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Scale the samples to `full_scale`."""
        return waveforms * self.full_scale, sample_counts

    def frames(self, frames: Tensor) -> Tensor:
        """Subtract the mean of each frame, and apply pre-emphasis; sample 0 has no effect: the window is 0 there."""
        return sharpened(frames - frames.mean(dim=-1, keepdim=True))

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies to at least FLOOR."""
        return energies.clamp(min=FLOOR)
