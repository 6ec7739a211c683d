"""Normalisation to unit variance over the utterance, equal to that of w2v-BERT 2.0."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean


class UnitVariance:
    """Subtract each bin's mean over the utterance, and divide by the root of the bin's unbiased variance plus `eps`.

    *Source*: SeamlessM4TFeatureExtractor of transformers. The features of a single frame become zeros.

    Args:
        eps: added to the variance.
    """

    framewise = False

    def __init__(self, *, eps: Eps) -> None:
        self.eps = eps

    def __call__(self, features: Tensor) -> Tensor:
        """Map (T, F) to (T, F)."""
        if len(features) == 0:
            return features
        mean = features.mean(dim=0, dtype=torch.float64).to(features)  # in float64 the mean of a constant bin is exact
        centered = features - mean
        return centered / (centered.square().sum(dim=0) / max(1, len(features) - 1) + self.eps).sqrt()

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return BatchedUnitVariance(self)

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class BatchedUnitVariance(nn.Module):
    """`UnitVariance` of a padded batch."""

    def __init__(self, normalize: UnitVariance) -> None:
        super().__init__()
        self.eps = normalize.eps

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        valid = ~padding
        centered = features - masked_mean(features, valid)
        squares = centered.masked_fill(padding[..., None], 0.0).square().sum(dim=1, keepdim=True)
        count = (valid.sum(dim=1) - 1).clamp(min=1)[:, None, None]
        return centered / (squares / count + self.eps).sqrt()
