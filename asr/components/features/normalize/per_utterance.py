"""Normalisation by the statistics of the utterance."""

from torch import Tensor

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean, masked_var
from asr.components.features.normalize.frame import Normalizer


class PerUtterance(Normalizer):
    """Shift and scale each bin to mean 0 and variance 1 over the utterance.

    This removes the effects of loudness and channel.

    Args:
        min_std: lower bound of the divisor, for constant bins.
    """

    def __init__(self, *, min_std: Eps) -> None:
        super().__init__()
        self.min_std = min_std

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        centered = features - masked_mean(features, valid)
        return centered / masked_var(centered, valid).sqrt().clamp(min=self.min_std)
