"""Normalisation by the statistics of the utterance."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean, masked_std


class PerUtterance:
    """Shift and scale each bin to mean 0 and variance 1 over the utterance.

    This removes the effects of loudness and channel.

    Args:
        min_std: lower bound of the divisor, for constant bins.
    """

    framewise = False

    def __init__(self, *, min_std: Eps) -> None:
        self.min_std = min_std

    def __call__(self, features: Tensor) -> Tensor:
        """Map (T, F) to (T, F)."""
        if len(features) == 0:
            return features
        mean = features.mean(dim=0, dtype=torch.float64).to(features)  # in float64 the mean of a constant bin is exact
        std = (features - mean).square().mean(dim=0).sqrt()  # five times as fast as torch.std
        return (features - mean) / std.clamp(min=self.min_std)

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return BatchedPerUtterance(self)

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class BatchedPerUtterance(nn.Module):
    """`PerUtterance` of a padded batch."""

    def __init__(self, normalize: PerUtterance) -> None:
        super().__init__()
        self.min_std = normalize.min_std

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        centered = features - masked_mean(features, ~padding)
        return centered / masked_std(centered, ~padding, self.min_std)
