"""Cepstral mean and variance normalisation over an utterance, as NVIDIA NeMo has it."""

import torch
from torch import Tensor, nn

from asr.features.batched.moments import masked_mean
from asr.settings.rule import Eps


class UtteranceCMVN:
    """Shift each bin by its mean over the utterance, and divide it by its unbiased standard deviation plus `eps`.

    *Source*: NeMo's `normalize: per_feature`. A single frame has no deviation: it comes out as zeros.

    Args:
        eps: added to the standard deviation.
    """

    framewise = False

    def __init__(self, *, eps: Eps) -> None:
        self.eps = eps

    def __call__(self, features: Tensor) -> Tensor:
        """(T, F) to (T, F)."""
        if len(features) == 0:
            return features
        mean = features.mean(dim=0, dtype=torch.float64).to(features)  # in float64 that of a constant bin is exact
        centered = features - mean
        std = (centered.square().sum(dim=0) / max(1, len(features) - 1)).sqrt()
        return centered / (std + self.eps)

    @property
    def batched(self) -> nn.Module:
        """The same for a padded batch."""
        return BatchedUtteranceCMVN(self)

    def fit(self, features: object) -> None:
        """Nothing is learnt from the training set."""

    def files(self) -> dict[str, bytes]:
        """Nothing is kept."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Nothing is kept."""


class BatchedUtteranceCMVN(nn.Module):
    """As `UtteranceCMVN`: by the mean and the unbiased standard deviation."""

    def __init__(self, normalize: UtteranceCMVN) -> None:
        super().__init__()
        self.eps = normalize.eps

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        kept = ~padding
        centered = features - masked_mean(features, kept)
        squares = centered.masked_fill(padding[..., None], 0.0).square().sum(dim=1, keepdim=True)
        count = (kept.sum(dim=1) - 1).clamp(min=1)[:, None, None]
        return centered / ((squares / count).sqrt() + self.eps)
