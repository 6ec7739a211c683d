"""Limit the dynamic range of an utterance, as Whisper does."""

import math
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import number
from asr.components.features.normalize.frame import Normalizer

DECADE = math.log(10)  # of the power, in units of its natural logarithm; 10 dB
SCALE, SHIFT = 4 * DECADE, 1.0


class DynamicRange(Normalizer):
    """Raise each value to at least `range_db` below the utterance's largest value; divide by 40 dB, and add 1.

    *Source*: `log_mel_spectrogram` of Whisper (Radford et al. 2022, arXiv:2212.04356), and transformers'
    GraniteSpeech5FeatureExtractor.

    Args:
        range_db: largest difference from the utterance's largest value, in dB.
    """

    def __init__(self, *, range_db: Annotated[float, number(0, 1_000)]) -> None:
        super().__init__()
        self.range = range_db / 10 * DECADE

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        counted = features if valid is None else features.masked_fill(~valid[..., None], -math.inf)
        return torch.maximum(features, counted.amax(dim=(-2, -1), keepdim=True) - self.range) / SCALE + SHIFT
