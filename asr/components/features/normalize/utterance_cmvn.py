"""Cepstral mean and variance normalisation over an utterance, equal to NVIDIA NeMo's."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps
from asr.components.features.batched.moments import masked_mean


class UtteranceCMVN:
    """Subtract each bin's mean over the utterance, and divide by the bin's unbiased standard deviation plus `eps`.

    *Source*: NeMo's `normalize: per_feature`. The features of a single frame become zeros.

    Args:
        eps: added to the standard deviation.
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
        std = (centered.square().sum(dim=0) / max(1, len(features) - 1)).sqrt()
        return centered / (std + self.eps)

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return BatchedUtteranceCMVN(self)

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class BatchedUtteranceCMVN(nn.Module):
    """`UtteranceCMVN` of a padded batch."""

    def __init__(self, normalize: UtteranceCMVN) -> None:
        super().__init__()
        self.eps = normalize.eps

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        valid = ~padding
        centered = features - masked_mean(features, valid)
        squares = centered.masked_fill(padding[..., None], 0.0).square().sum(dim=1, keepdim=True)
        count = (valid.sum(dim=1) - 1).clamp(min=1)[:, None, None]
        return centered / ((squares / count).sqrt() + self.eps)
