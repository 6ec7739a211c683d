"""Log-mel filterbank features, equal to Kaldi's."""

from collections.abc import Callable

import torchaudio.compliance.kaldi
from torch import Tensor

from asr.interfaces import Normalization
from asr.lengths import Lengths

INT16_SCALE = 2**15  # Kaldi reads 16-bit samples as they are; unscaled, quiet audio would sit on the log's floor


class Fbank:
    """Log-mel filterbank energies, then normalisation.

    *Source*: Kaldi's compute-fbank-feats with its defaults (Povey window, pre-emphasis 0.97, power spectrum, 20 Hz
    to Nyquist, snip_edges: only windows that lie within the audio), through torchaudio; without dither, so that the
    same audio gives the same features.

    Args:
        sample_rate: Hz; audio is resampled to it.
        num_mel_bins: F.
        frame_length_seconds: window.
        frame_shift_seconds: from one frame to the next.
        normalize: makes the last step, the normalisation.
    """

    def __init__(
        self,
        *,
        sample_rate: int,
        num_mel_bins: int,
        frame_length_seconds: float,
        frame_shift_seconds: float,
        normalize: Callable[[], Normalization],
    ) -> None:
        self.sample_rate = sample_rate
        self.dim = num_mel_bins
        self.frame_shift_seconds = frame_shift_seconds
        self.normalize = normalize()
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples; Kaldi rounds down
        self.shift = int(sample_rate * frame_shift_seconds + 1e-6)

    def __call__(self, waveform: Tensor) -> Tensor:
        """Waveform (S,) in [-1, 1] to normalised features (T, F)."""
        return self.normalize(self.energies(waveform))

    def energies(self, waveform: Tensor) -> Tensor:
        """Waveform (S,) in [-1, 1] to log-mel energies (T, F), not normalised."""
        if self.num_frames(len(waveform)) == 0:
            return waveform.new_zeros(0, self.dim)
        return torchaudio.compliance.kaldi.fbank(
            waveform[None] * INT16_SCALE,
            sample_frequency=self.sample_rate,
            num_mel_bins=self.dim,
            frame_length=1000 * (self.window + 0.5) / self.sample_rate,  # ms, which it rounds down to samples
            frame_shift=1000 * (self.shift + 0.5) / self.sample_rate,
            snip_edges=True,
        )

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Frames T that `num_samples` samples (an int, or a tensor of them) give."""
        frames = (num_samples - self.window) // self.shift + 1
        return frames * (frames > 0)
