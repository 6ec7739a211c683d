"""Log-mel filterbank features of windows that are not centred, equal to those of Google's MedASR."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.batched.spectrum import fourier, framed, power_spectrum
from asr.components.features.fbank import triangles
from asr.errors import InputError
from asr.interfaces import Normalization
from asr.lengths import Lengths, strided_lengths

MIN_HERTZ, MAX_HERTZ = 125.0, 7500.0  # edges of the mel bins
FLOOR = 1e-5  # lower bound of an energy before its logarithm; the samples are in [-1, 1]
BLOCK_FRAMES = 256  # number of frames computed at a time, so that intermediate results stay in the cache


class HannFbank:
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
        self.sample_rate = sample_rate
        self.dim = num_mel_bins
        self.normalize = normalize()
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples
        self.hop = int(sample_rate * frame_shift_seconds + 1e-6)
        self.samples_ahead = max(self.window, self.hop)
        self.frames_before = 0
        self.fft_points = 1 << (self.window - 1).bit_length()  # the next power of 2
        self.hann = torch.hann_window(self.window, periodic=False)
        self.mel = triangles(sample_rate, self.fft_points, num_mel_bins, MIN_HERTZ, MAX_HERTZ).float()

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1], or up to `asr.base.audio.load.MAX_SAMPLE`, to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        if self.num_frames(len(waveform)) == 0:
            return waveform.new_zeros(0, self.dim)
        frames = waveform.unfold(0, self.window, self.hop)  # (T, window)
        return torch.cat([self._log_mel(block) for block in frames.split(BLOCK_FRAMES)])

    @property
    def batched(self) -> nn.Module:
        """The energies of a padded batch."""
        return BatchedHannFbank(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        return strided_lengths(num_samples, kernel_size=self.window, stride=self.hop, padding=0)

    def _log_mel(self, frames: Tensor) -> Tensor:
        """Map (T, window) to (T, F)."""
        spectrum = torch.fft.rfft(frames * self.hann.to(frames), n=self.fft_points)
        power = spectrum.real.square() + spectrum.imag.square()  # (T, FFT bins); abs() would take a root
        return (power @ self.mel.to(power)).clamp(min=FLOOR).log()


class BatchedHannFbank(nn.Module):
    """Log-mel energies of `HannFbank` for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: HannFbank) -> None:
        super().__init__()
        self.window, self.hop = features.window, features.hop
        self.register_buffer("fourier", fourier(features.hann, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        frames = framed(waveforms, self.window, self.hop)  # (B, T, window)
        return (power_spectrum(frames @ self.fourier) @ self.mel).clamp(min=FLOOR).log()
