"""The samples of a waveform as frames, for encoders that read waveforms."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import SWITCH, FrameLength, FrameShift, SampleRate
from asr.components.features.batched.moments import masked_mean, masked_var
from asr.components.features.batched.spectrum import framed
from asr.components.features.normalize.none import NoneNormalize
from asr.lengths import Lengths, padding_mask, strided_lengths

EPS = 1e-7  # added to the variance


class Waveform:
    """The samples of each window, (T, F), which one output of an encoder's convolutions over samples depends on.

    Frames overlap by the difference of window and hop. Only windows that lie within the audio are used, as by
    convolutions without padding.

    *Source*: transformers' Wav2Vec2FeatureExtractor, which normalises the samples of a recording.

    Args:
        sample_rate: Hz; audio is resampled to this rate.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from one frame to the next.
        unit_variance: whether the samples of a recording are normalised to mean 0 and variance 1.
    """

    def __init__(
        self,
        *,
        sample_rate: SampleRate,
        frame_length_seconds: FrameLength,
        frame_shift_seconds: FrameShift,
        unit_variance: Annotated[bool, SWITCH],
    ) -> None:
        self.sample_rate = sample_rate
        self.window = int(sample_rate * frame_length_seconds + 1e-6)  # samples, rounded down
        self.hop = int(sample_rate * frame_shift_seconds + 1e-6)
        self.dim = self.window
        self.samples_ahead = max(self.window, self.hop)
        self.frames_before = 0
        self.unit_variance = unit_variance
        # Samples are normalised before they are framed: the last ones, which fill no window, count.
        self.normalize = WholeRecording() if unit_variance else NoneNormalize()

    def __call__(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to normalised frames (T, F)."""
        return self.energies(waveform)

    def energies(self, waveform: Tensor) -> Tensor:
        """Map a waveform (S,) in [-1, 1] to normalised frames (T, F)."""
        if self.num_frames(len(waveform)) == 0:
            return waveform.new_zeros(0, self.dim)
        if self.unit_variance:
            waveform = unit_variance(waveform[None], None)[0]
        return waveform.unfold(0, self.window, self.hop).contiguous()

    @property
    def batched(self) -> nn.Module:
        """The frames of a padded batch."""
        return BatchedWaveform(self)

    def num_frames(self, num_samples: Lengths) -> Lengths:
        """Return the number of frames T of `num_samples` samples (an int or a tensor)."""
        return strided_lengths(num_samples, kernel_size=self.window, stride=self.hop, padding=0)


class WholeRecording(NoneNormalize):
    """Leave frames unchanged whose samples were normalised over the recording, so that no stream can compute them."""

    framewise = False


class BatchedWaveform(nn.Module):
    """Frames of the waveforms of a padded batch."""

    def __init__(self, features: Waveform) -> None:
        super().__init__()
        self.features = features

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> Tensor:
        """Map waveforms (B, S), 0 in the padding, to (B, T, F)."""
        if self.features.unit_variance:
            waveforms = unit_variance(waveforms, ~padding_mask(sample_counts, waveforms.shape[1]))
        return framed(waveforms, self.features.window, self.features.hop)


def unit_variance(waveforms: Tensor, valid: Tensor | None) -> Tensor:
    """Normalise each of (B, S) to mean 0 and variance 1 over its samples; `valid`: as in `masked_mean`, (B, S)."""
    samples = waveforms[..., None]
    centered = samples - masked_mean(samples, valid)
    return (centered / torch.sqrt(masked_var(centered, valid) + EPS))[..., 0]
