"""Limit the dynamic range of an utterance, as Whisper does."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import number

DECADE = math.log(10)  # of the power, in units of its natural logarithm; 10 dB
SCALE, SHIFT = 4 * DECADE, 1.0


class DynamicRange:
    """Raise each value to at least `range_db` below the utterance's largest value; divide by 40 dB, and add 1.

    *Source*: `log_mel_spectrogram` of Whisper (Radford et al. 2022, arXiv:2212.04356), and transformers'
    GraniteSpeech5FeatureExtractor.

    Args:
        range_db: largest difference from the utterance's largest value, in dB.
    """

    framewise = False

    def __init__(self, *, range_db: Annotated[float, number(0, 1_000)]) -> None:
        self.range = range_db / 10 * DECADE

    def __call__(self, features: Tensor) -> Tensor:
        """Map (T, F) to (T, F)."""
        if len(features) == 0:
            return features
        return torch.maximum(features, features.max() - self.range) / SCALE + SHIFT

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return BatchedDynamicRange(self)

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class BatchedDynamicRange(nn.Module):
    """`DynamicRange` of a padded batch."""

    def __init__(self, normalize: DynamicRange) -> None:
        super().__init__()
        self.range = normalize.range

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        largest = features.masked_fill(padding[..., None], -math.inf).amax(dim=(1, 2), keepdim=True)
        return torch.maximum(features, largest - self.range) / SCALE + SHIFT
