"""Cepstral mean and variance normalisation over an utterance, equal to NVIDIA NeMo's."""

from torch import Tensor

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean, masked_var
from asr.components.features.normalize.frame import Normalizer


class UtteranceCMVN(Normalizer):
    """Subtract each bin's mean over the utterance, and divide by the bin's unbiased standard deviation plus `eps`.

    *Source*: NeMo's `normalize: per_feature`. The features of a single frame become zeros.

    Args:
        eps: added to the standard deviation.
    """

    def __init__(self, *, eps: Eps) -> None:
        super().__init__()
        self.eps = eps

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        centered = features - masked_mean(features, valid)
        return centered / (masked_var(centered, valid, correction=1).sqrt() + self.eps)
