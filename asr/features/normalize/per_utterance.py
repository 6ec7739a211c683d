"""Normalisation by an utterance's own statistics."""

import torch
from torch import Tensor, nn

from asr.features.batched.moments import masked_mean, masked_std
from asr.settings.rule import Eps


class PerUtterance:
    """Shift and scale each bin to mean 0 and variance 1 over the utterance: loudness and channel are divided out.

    Args:
        min_std: what a constant bin is divided by instead of its standard deviation.
    """

    framewise = False

    def __init__(self, *, min_std: Eps) -> None:
        self.min_std = min_std

    def __call__(self, features: Tensor) -> Tensor:
        """(T, F) to (T, F)."""
        if len(features) == 0:
            return features
        mean = features.mean(dim=0, dtype=torch.float64).to(features)  # in float64 that of a constant bin is exact
        std = (features - mean).square().mean(dim=0).sqrt()  # five times as fast as torch.std
        return (features - mean) / std.clamp(min=self.min_std)

    @property
    def batched(self) -> nn.Module:
        """The same for a padded batch."""
        return BatchedPerUtterance(self)

    def fit(self, features: object) -> None:
        """Nothing is learnt from the training set."""

    def files(self) -> dict[str, bytes]:
        """Nothing is kept."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Nothing is kept."""


class BatchedPerUtterance(nn.Module):
    """As `PerUtterance`: by the mean and the standard deviation."""

    def __init__(self, normalize: PerUtterance) -> None:
        super().__init__()
        self.min_std = normalize.min_std

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        centered = features - masked_mean(features, ~padding)
        return centered / masked_std(centered, ~padding, self.min_std)
