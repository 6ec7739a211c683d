"""Normalisation to unit variance over the utterance, equal to that of w2v-BERT 2.0."""

from torch import Tensor

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean, masked_var
from asr.components.features.normalize.frame import Normalizer


class UnitVariance(Normalizer):
    """Subtract each bin's mean over the utterance, and divide by the root of the bin's unbiased variance plus `eps`.

    *Source*: SeamlessM4TFeatureExtractor of transformers. The features of a single frame become zeros.

    Args:
        eps: added to the variance.
    """

    def __init__(self, *, eps: Eps) -> None:
        super().__init__()
        self.eps = eps

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        centered = features - masked_mean(features, valid)
        return centered / (masked_var(centered, valid, correction=1) + self.eps).sqrt()
