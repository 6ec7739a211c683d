"""Log-mel filterbank features, equal to Kaldi's."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.batched.spectrum import fourier, framed, power_spectrum
from asr.interfaces import Normalization
from asr.lengths import Lengths

INT16_SCALE = 2**15  # Kaldi uses 16-bit integers; with samples in [-1, 1], energies of quiet audio would be below FLOOR
PREEMPHASIS = 0.97
MIN_HERTZ = 20.0  # lower edge of the first mel bin
FLOOR = torch.finfo(torch.float32).eps  # lower bound of an energy before its logarithm
BLOCK_FRAMES = 256  # number of frames computed at a time, so that intermediate results stay in the cache


class Fbank:
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
        self.sample_rate = sample_rate
        self.dim = num_mel_bins
        self.normalize = normalize()
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples; Kaldi rounds down
        self.hop = int(sample_rate * frame_shift_seconds + 1e-6)
        self.samples_ahead = max(self.window, self.hop)
        self.frames_before = 0
        self.fft_points = 1 << (self.window - 1).bit_length()  # the next power of 2
        self.povey = torch.hann_window(self.window, periodic=False, dtype=torch.float64).pow(0.85).float()
        self.mel = triangles(sample_rate, self.fft_points, num_mel_bins, MIN_HERTZ, sample_rate / 2).float()

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1], or up to `asr.base.audio.load.MAX_SAMPLE`, to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        if self.num_frames(len(waveform)) == 0:
            return waveform.new_zeros(0, self.dim)
        frames = (waveform * INT16_SCALE).unfold(0, self.window, self.hop)  # (T, window)
        return torch.cat([self._log_mel(block) for block in frames.split(BLOCK_FRAMES)])

    @property
    def batched(self) -> nn.Module:
        """The energies of a padded batch."""
        return BatchedFbank(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        frames = (num_samples - self.window) // self.hop + 1
        return frames * (frames > 0)

    def _log_mel(self, frames: Tensor) -> Tensor:
        """Map (T, window) to (T, F)."""
        frames = frames - frames.mean(dim=1, keepdim=True)
        frames[:, 1:] -= PREEMPHASIS * frames[:, :-1]  # the first sample has no effect: the window is 0 there
        spectrum = torch.fft.rfft(frames * self.povey, n=self.fft_points)
        power = spectrum.real.square() + spectrum.imag.square()  # (T, FFT bins); abs() would take a root
        return (power @ self.mel.to(power)).clamp(min=FLOOR).log()


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
        return (power_spectrum(sharper @ self.fourier) @ self.mel).clamp(min=FLOOR).log()


def triangles(sample_rate: int, fft_points: int, num_mel_bins: int, min_hertz: float, max_hertz: float) -> Tensor:
    """Return the weights (FFT bins, F) of triangles of equal width in mel that overlap by half.

    *Source*: Kaldi's mel-computations.cc.

    Args:
        sample_rate: Hz.
        fft_points: number of samples of the Fourier transform.
        num_mel_bins: F.
        min_hertz: lower edge of the first triangle.
        max_hertz: upper edge of the last triangle.
    """
    hertz = torch.arange(fft_points // 2 + 1, dtype=torch.float64) * sample_rate / fft_points
    lowest, highest = _mel(torch.tensor([min_hertz, max_hertz], dtype=torch.float64))
    half_width = (highest - lowest) / (num_mel_bins + 1)
    centers = lowest + half_width * torch.arange(1, num_mel_bins + 1)
    return (1 - (_mel(hertz)[:, None] - centers).abs() / half_width).clamp(min=0)


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * torch.log1p(hertz / 700)
