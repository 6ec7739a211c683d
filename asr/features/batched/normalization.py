"""Normalisations of a padded batch of features, (B, T, F) with a padding mask (B, T): `asr.features.normalize`'s.

What comes out of frames of padding are numbers, and nothing more is said of them.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from asr.features.normalize.global_cmvn import GlobalCMVN
from asr.features.normalize.loud_frame_cmvn import LoudFrameCMVN
from asr.features.normalize.per_utterance import PerUtterance
from asr.features.normalize.utterance_cmvn import UtteranceCMVN


class BatchedUtteranceCMVN(nn.Module):
    """As `UtteranceCMVN`: by the mean and the unbiased standard deviation."""

    def __init__(self, normalize: UtteranceCMVN) -> None:
        super().__init__()
        self.eps = normalize.eps

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        kept = ~padding
        centered = features - mean(features, kept)
        squares = centered.masked_fill(padding[..., None], 0.0).square().sum(dim=1, keepdim=True)
        count = (kept.sum(dim=1) - 1).clamp(min=1)[:, None, None]
        return centered / ((squares / count).sqrt() + self.eps)


class BatchedPerUtterance(nn.Module):
    """As `PerUtterance`: by the mean and the standard deviation."""

    def __init__(self, normalize: PerUtterance) -> None:
        super().__init__()
        self.min_std = normalize.min_std

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        centered = features - mean(features, ~padding)
        return centered / deviation(centered, ~padding, self.min_std)


class BatchedLoudFrameCMVN(nn.Module):
    """As `LoudFrameCMVN`: by those of the loud frames, and no bin lower than the lowest of them."""

    def __init__(self, normalize: LoudFrameCMVN) -> None:
        super().__init__()
        self.dynamic_range = normalize.dynamic_range
        self.min_std = normalize.min_std

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        level = features.mean(dim=2).masked_fill(padding, -math.inf)  # (B, T)
        loud = (level >= level.amax(dim=1, keepdim=True) - self.dynamic_range) & ~padding
        lowest = features.masked_fill(~loud[..., None], math.inf).amin(dim=1, keepdim=True)
        average = mean(features, loud)
        return (features.maximum(lowest) - average) / deviation(features - average, loud, self.min_std)


class BatchedGlobalCMVN(nn.Module):
    """As `GlobalCMVN`: by the training set's."""

    mean: Tensor
    std: Tensor

    def __init__(self, normalize: GlobalCMVN) -> None:
        super().__init__()
        self.register_buffer("mean", normalize.mean)
        self.register_buffer("std", normalize.std)

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """(B, T, F), (B, T) to (B, T, F)."""
        return (features - self.mean) / self.std


def mean(features: Tensor, kept: Tensor) -> Tensor:
    """Mean over the frames that are kept, (B, 1, F); in float64 that of a constant bin is exact."""
    total = features.masked_fill(~kept[..., None], 0.0).double().sum(dim=1, keepdim=True)
    return (total / kept.sum(dim=1).clamp(min=1)[:, None, None]).to(features)


def deviation(centered: Tensor, kept: Tensor, least: float) -> Tensor:
    """Standard deviation over the frames that are kept, (B, 1, F)."""
    squares = centered.masked_fill(~kept[..., None], 0.0).square().sum(dim=1, keepdim=True)
    return (squares / kept.sum(dim=1).clamp(min=1)[:, None, None]).sqrt().clamp(min=least)


NORMALIZATIONS: dict[type, Callable[..., nn.Module]] = {
    UtteranceCMVN: BatchedUtteranceCMVN,
    PerUtterance: BatchedPerUtterance,
    LoudFrameCMVN: BatchedLoudFrameCMVN,
    GlobalCMVN: BatchedGlobalCMVN,
}
