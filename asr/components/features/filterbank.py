"""Log-mel filterbanks: windows, power spectra, mel filters, and their logarithm."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import FrameLength, FrameShift, MelBins, SampleRate
from asr.components.features.batched.spectrum import PADS as BATCHED_PADS
from asr.components.features.batched.spectrum import fourier, framed, power_spectrum
from asr.interfaces import Normalization
from asr.lengths import Lengths, strided_lengths

PREEMPHASIS = 0.97
BLOCK_FRAMES = 256  # number of frames computed at a time, so that intermediate results stay in the cache


class LogMel:
    """Log-mel filterbank energies, then normalisation; each filterbank overrides the steps in which it differs.

    The steps are the same for an utterance and for a padded batch. Only the framing and the Fourier transform, which
    give the same numbers within float32 precision, have a form for each.

    Attributes:
        pad: how the waveform is padded for frames that are centred on multiples of the hop, a key of PADS; None: a
            frame begins at each multiple of the hop, and only windows that lie within the audio are used.

    Args:
        sample_rate: Hz; audio is resampled to this rate.
        num_mel_bins: F.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from one frame to the next.
        normalize: makes the normalisation, which is the last step.
    """

    pad: str | None = None

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
        self.before = self.samples_before()
        self.samples_ahead = max(self.window - self.before, self.hop)
        self.frames_before = 0
        if self.pad is not None:
            self.samples_ahead = max(self.samples_ahead, self.before + 1)  # for mirroring at the start
            self.frames_before = self.before // self.hop + 1  # covers before + 1 samples: one more for pre-emphasis
        self.fft_points = 1 << (self.window - 1).bit_length()  # the next power of 2
        self.taper = self.make_taper(self.window)
        hertz = torch.arange(self.fft_points // 2 + 1, dtype=torch.float64) * sample_rate / self.fft_points
        self.mel = self.filters(hertz).float()  # (FFT bins, F)

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1], or up to `asr.base.audio.load.MAX_SAMPLE`, to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        num_frames = self.num_frames(len(waveform))
        if num_frames == 0:
            return waveform.new_zeros(0, self.dim)
        samples, count = self.samples(waveform, len(waveform))
        if self.pad is not None:
            after = max(0, (num_frames - 1) * self.hop + self.window - self.before - count)
            samples = PADS[self.pad](samples[:count], self.before, after)
        frames = samples.unfold(0, self.window, self.hop)[:num_frames]  # (T, window)
        return torch.cat([self._log_mel(block) for block in frames.split(BLOCK_FRAMES)])

    @property
    def batched(self) -> nn.Module:
        """The energies of a padded batch."""
        return BatchedLogMel(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        if self.pad is not None:
            return num_samples // self.hop
        return strided_lengths(num_samples, kernel_size=self.window, stride=self.hop, padding=0)

    def samples_before(self) -> int:
        """Return the number of samples of a frame before its multiple of the hop: a half, or 0 without padding."""
        return (self.window + 1) // 2 if self.pad is not None else 0

    def make_taper(self, num_samples: int) -> Tensor:
        """Return the window function, (num_samples,): here a symmetric Hann window."""
        return torch.hann_window(num_samples, periodic=False)

    def filters(self, hertz: Tensor) -> Tensor:
        """Return the weights (FFT bins, F) of the mel filters at frequencies `hertz`, (FFT bins,)."""
        raise NotImplementedError

    def samples(self, waveforms: Tensor, sample_counts: Lengths) -> tuple[Tensor, Lengths]:
        """Prepare waveforms (S,) or (B, S), and their numbers of samples, before they are padded and framed."""
        return waveforms, sample_counts

    def frames(self, frames: Tensor) -> Tensor:
        """Prepare frames (..., T, window) before the window function."""
        return frames

    def floored(self, energies: Tensor) -> Tensor:
        """Raise energies (..., T, F) to positive values before their logarithm."""
        raise NotImplementedError

    def _log_mel(self, frames: Tensor) -> Tensor:
        """Map (T, window) to (T, F)."""
        frames = self.frames(frames)
        spectrum = torch.fft.rfft(frames * self.taper.to(frames), n=self.fft_points)
        power = spectrum.real.square() + spectrum.imag.square()  # (T, FFT bins); abs() would take a root
        return self.floored(power @ self.mel.to(power)).log()


class BatchedLogMel(nn.Module):
    """Log-mel energies of a filterbank for a padded batch."""

    fourier: Tensor
    mel: Tensor

    def __init__(self, features: LogMel) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("fourier", fourier(features.taper, features.fft_points))
        self.register_buffer("mel", features.mel)

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        features = self.features
        samples, counts = features.samples(waveforms, sample_counts)
        if features.pad is not None:
            samples = BATCHED_PADS[features.pad](samples, counts, features.before)
        frames = features.frames(framed(samples, features.window, features.hop))  # (B, T, window)
        return features.floored(power_spectrum(frames @ self.fourier) @ self.mel).log()


def sharpened(samples: Tensor) -> Tensor:
    """Apply pre-emphasis to samples (..., S): subtract a part of the sample before each; before the first is 0."""
    return samples - PREEMPHASIS * F.pad(samples, (1, 0))[..., :-1]


def triangles(bins: Tensor, corners: Tensor) -> Tensor:
    """Return weights (FFT bins, F): triangles of height 1 from each corner to the next but one.

    Args:
        bins: frequencies of the FFT bins, (FFT bins,), on the scale on which the triangles have straight sides.
        corners: corners of the triangles on the same scale, (F + 2,).
    """
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (bins[:, None] - left) / (center - left), (right - bins[:, None]) / (right - center)
    return torch.minimum(rising, falling).clamp(min=0)


def kaldi_triangles(hertz: Tensor, num_mel_bins: int, min_hertz: float, max_hertz: float) -> Tensor:
    """Return the weights (FFT bins, F) of triangles of equal width in mel that overlap by half.

    *Source*: Kaldi's mel-computations.cc.

    Args:
        hertz: frequencies of the FFT bins, (FFT bins,).
        num_mel_bins: F.
        min_hertz: lower edge of the first triangle.
        max_hertz: upper edge of the last triangle.
    """
    lowest, highest = _mel(torch.tensor([min_hertz, max_hertz], dtype=torch.float64))
    steps = torch.arange(num_mel_bins + 2, dtype=torch.float64) / (num_mel_bins + 1)
    return triangles(_mel(hertz), lowest + (highest - lowest) * steps)


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * torch.log1p(hertz / 700)


def _reflected(waveform: Tensor, before: int, after: int) -> Tensor:
    """Mirror (S,) at its first and last sample, repeatedly if it is short."""
    length, period = len(waveform), max(1, 2 * (len(waveform) - 1))
    ends = [torch.arange(-before, 0) % period, torch.arange(length, length + after) % period]
    left, right = (waveform[torch.minimum(end, period - end)] for end in ends)
    return torch.cat([left, waveform, right])


def _mirrored(waveform: Tensor, before: int, after: int) -> Tensor:
    """Mirror (S,) before its first and after its last sample, repeatedly if it is short."""
    length = len(waveform)
    ends = [torch.arange(-before, 0) % (2 * length), torch.arange(length, length + after) % (2 * length)]
    left, right = (waveform[torch.minimum(end, 2 * length - 1 - end)] for end in ends)
    return torch.cat([left, waveform, right])


PADS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "zeros": lambda waveform, before, after: F.pad(waveform, (before, after)),
    "reflect": _reflected,
    "mirror": _mirrored,
}
