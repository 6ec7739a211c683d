"""Log-mel filterbank features, equal to NVIDIA NeMo's."""

import math
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate, one_of
from asr.components.features.batched.spectrum import PADS as BATCHED_PADS
from asr.components.features.batched.spectrum import fourier, framed, power_spectrum
from asr.interfaces import Normalization
from asr.lengths import Lengths

PREEMPHASIS = 0.97
FLOOR = 2.0**-24  # added to an energy before its logarithm
BLOCK_FRAMES = 256  # number of frames computed at a time, so that intermediate results stay in the cache
LINEAR_HERTZ = 1000.0  # Slaney's mel scale is linear below and logarithmic above
HERTZ_PER_MEL = 200 / 3  # below LINEAR_HERTZ
MELS_PER_OCTAVE = 27 / math.log2(6.4)  # above LINEAR_HERTZ


class SlaneyFbank:
    """Log-mel filterbank energies of centred frames, on Slaney's mel scale, then normalisation.

    *Source*: NeMo's AudioToMelSpectrogramPreprocessor (also used by transformers' Parakeet) without dither:
    pre-emphasis over the whole waveform, a symmetric Hann window centred in an FFT whose size is the next power of 2,
    power spectrum, triangles as in Slaney's Auditory Toolbox (1998) from 0 Hz to Nyquist, each with unit area in
    Hz. Frames are centred on multiples of the hop; there is one frame for each complete hop.

    Args:
        sample_rate: Hz; audio is resampled to this rate.
        num_mel_bins: F.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from one frame to the next.
        pad_mode: padding around the waveform: "zeros", or "reflect" for the waveform mirrored at its ends.
        normalize: makes the normalisation, which is the last step.
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
        self.sample_rate = sample_rate
        self.dim = num_mel_bins
        self.normalize = normalize()
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples; NeMo rounds down
        self.hop = int(sample_rate * frame_shift_seconds + 1e-6)
        before = (self.window + 1) // 2
        self.samples_ahead = max(self.window - before, before + 1, self.hop)  # before + 1: for mirroring at the start
        self.frames_before = before // self.hop + 1  # covers before + 1 samples: one more for the pre-emphasis
        self.fft_points = 1 << (self.window - 1).bit_length()  # the next power of 2
        self.hann = torch.hann_window(self.window, periodic=False)
        self.mel = _triangles(sample_rate, self.fft_points, num_mel_bins).float()  # (FFT bins, F)
        self.pad_mode = pad_mode

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1], or up to `asr.base.audio.load.MAX_SAMPLE`, to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        num_frames = self.num_frames(len(waveform))
        if num_frames == 0:
            return waveform.new_zeros(0, self.dim)
        sharper = waveform.clone()
        sharper[1:] -= PREEMPHASIS * waveform[:-1]
        before = (self.window + 1) // 2
        after = max(0, (num_frames - 1) * self.hop + self.window - before - len(waveform))
        padded = PADS[self.pad_mode](sharper, before, after)
        frames = padded.unfold(0, self.window, self.hop)[:num_frames]  # (T, window)
        return torch.cat([self._log_mel(block) for block in frames.split(BLOCK_FRAMES)])

    @property
    def batched(self) -> nn.Module:
        """The energies of a padded batch."""
        return BatchedSlaneyFbank(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        return num_samples // self.hop

    def _log_mel(self, frames: Tensor) -> Tensor:
        """Map (T, window) to (T, F)."""
        spectrum = torch.fft.rfft(frames * self.hann.to(frames), n=self.fft_points)
        power = spectrum.real.square() + spectrum.imag.square()  # (T, FFT bins); abs() would take a root
        return (power @ self.mel.to(power)).add_(FLOOR).log_()


class BatchedSlaneyFbank(nn.Module):
    """Log-mel energies of `SlaneyFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: SlaneyFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.pad = BATCHED_PADS[features.pad_mode]
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        sharper = waveforms - PREEMPHASIS * F.pad(waveforms, (1, 0))[:, :-1]
        centred = self.pad(sharper, sample_counts, (self.window + 1) // 2)
        return (power_spectrum(framed(centred, self.window, self.hop) @ self.fourier) @ self.mel + FLOOR).log()


def _reflected(waveform: Tensor, before: int, after: int) -> Tensor:
    """Mirror (S,) at its first and last sample, repeatedly if it is short."""
    length, period = len(waveform), max(1, 2 * (len(waveform) - 1))
    ends = [torch.arange(-before, 0) % period, torch.arange(length, length + after) % period]
    left, right = (waveform[torch.minimum(end, period - end)] for end in ends)
    return torch.cat([left, waveform, right])


PADS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "zeros": lambda waveform, before, after: F.pad(waveform, (before, after)),
    "reflect": _reflected,
}


def triangles(corners: Tensor, sample_rate: int, fft_points: int) -> Tensor:
    """Return weights (FFT bins, F): triangles of height 1 from each corner, of (F + 2,) in Hz, to the next but one."""
    hertz = torch.arange(fft_points // 2 + 1, dtype=torch.float64)[:, None] * sample_rate / fft_points
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (hertz - left) / (center - left), (right - hertz) / (right - center)
    return torch.minimum(rising, falling).clamp(min=0)


def _triangles(sample_rate: int, fft_points: int, num_mel_bins: int) -> Tensor:
    """Return weights (FFT bins, F): triangles with unit area in Hz and corners equidistant on Slaney's mel scale."""
    highest = _to_mel(torch.tensor(sample_rate / 2, dtype=torch.float64))
    corners = _to_hertz(torch.linspace(0, 1, num_mel_bins + 2, dtype=torch.float64) * highest)  # (F + 2,)
    return triangles(corners, sample_rate, fft_points) * 2 / (corners[2:] - corners[:-2])


def _to_mel(hertz: Tensor) -> Tensor:
    linear = hertz / HERTZ_PER_MEL
    octaves = (hertz / LINEAR_HERTZ).clamp(min=1).log2()
    return linear.clamp(max=LINEAR_HERTZ / HERTZ_PER_MEL) + MELS_PER_OCTAVE * octaves


def _to_hertz(mel: Tensor) -> Tensor:
    above = (mel - LINEAR_HERTZ / HERTZ_PER_MEL).clamp(min=0) / MELS_PER_OCTAVE
    return HERTZ_PER_MEL * mel.clamp(max=LINEAR_HERTZ / HERTZ_PER_MEL) * torch.exp2(above)
