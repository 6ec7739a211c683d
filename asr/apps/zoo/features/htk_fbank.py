"""Log-mel filterbank features, equal to those of transformers' Granite Speech 5."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.batched.spectrum import PADS as BATCHED_PADS
from asr.components.features.batched.spectrum import fourier, framed, power_spectrum
from asr.components.features.slaney_fbank import PADS, triangles
from asr.interfaces import Normalization
from asr.lengths import Lengths

FLOOR = 1e-10  # lower bound of an energy before its logarithm
BREAK_HERTZ = 700.0  # HTK's mel scale is nearly linear below, and nearly logarithmic above
BLOCK_FRAMES = 256  # number of frames computed at a time, so that intermediate results stay in the cache


class HTKFbank:
    """Log-mel filterbank energies of centred frames, on HTK's mel scale, then normalisation.

    *Source*: torchaudio's MelSpectrogram with its defaults, as in transformers' GraniteSpeech5FeatureExtractor: no
    pre-emphasis, a periodic Hann window centred in an FFT whose size is the next power of 2, the waveform mirrored at
    its ends, power spectrum, triangles of height 1 from 0 Hz to Nyquist. Frames are centred on multiples of the hop;
    there is one frame for each complete hop, and one more if their number is odd, because the encoder reads pairs. If
    this frame begins at the waveform's end, a sample of silence is appended.

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
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples, rounded down
        self.hop = int(sample_rate * frame_shift_seconds + 1e-6)
        before = (self.window + 1) // 2
        self.samples_ahead = max(self.window - before, before + 1, self.hop)  # before + 1: for mirroring at the start
        self.frames_before = before // self.hop + 1  # covers `before` samples
        self.fft_points = 1 << (self.window - 1).bit_length()  # the next power of 2
        self.hann = torch.hann_window(self.window)
        self.mel = _triangles(sample_rate, self.fft_points, num_mel_bins).float()  # (FFT bins, F)

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1], or up to `asr.base.audio.load.MAX_SAMPLE`, to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        num_frames, num_samples = self.num_frames(len(waveform)), self.num_samples(len(waveform))
        if num_frames == 0:
            return waveform.new_zeros(0, self.dim)
        before = (self.window + 1) // 2
        after = max(0, (num_frames - 1) * self.hop + self.window - before - num_samples)
        padded = PADS["reflect"](F.pad(waveform, (0, num_samples - len(waveform))), before, after)
        frames = padded.unfold(0, self.window, self.hop)[:num_frames]  # (T, window)
        return torch.cat([self._log_mel(block) for block in frames.split(BLOCK_FRAMES)])

    @property
    def batched(self) -> nn.Module:
        """The energies of a padded batch."""
        return BatchedHTKFbank(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor), which is even."""
        return (num_samples // self.hop + 1) // 2 * 2

    def num_samples(self, num_samples: Lengths) -> Lengths:
        """Return the number of samples, one more if the last frame would begin after them."""
        return num_samples + (num_samples % (2 * self.hop) == self.hop)

    def _log_mel(self, frames: Tensor) -> Tensor:
        """Map (T, window) to (T, F)."""
        spectrum = torch.fft.rfft(frames * self.hann.to(frames), n=self.fft_points)
        power = spectrum.real.square() + spectrum.imag.square()  # (T, FFT bins); abs() would take a root
        return (power @ self.mel.to(power)).clamp(min=FLOOR).log()


class BatchedHTKFbank(nn.Module):
    """Log-mel energies of `HTKFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: HTKFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.num_samples = features.num_samples
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        counts = self.num_samples(sample_counts)
        centred = BATCHED_PADS["reflect"](F.pad(waveforms, (0, 1)), counts, (self.window + 1) // 2)
        return (power_spectrum(framed(centred, self.window, self.hop) @ self.fourier) @ self.mel).clamp(min=FLOOR).log()


def _triangles(sample_rate: int, fft_points: int, num_mel_bins: int) -> Tensor:
    """Return weights (FFT bins, F): triangles of height 1 with corners equidistant on HTK's mel scale."""
    highest = torch.tensor(sample_rate / 2 / BREAK_HERTZ, dtype=torch.float64).log1p()
    corners = BREAK_HERTZ * (torch.linspace(0, 1, num_mel_bins + 2, dtype=torch.float64) * highest).expm1()
    return triangles(corners, sample_rate, fft_points)
