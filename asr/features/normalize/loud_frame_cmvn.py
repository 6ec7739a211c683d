"""Normalisation by the statistics of an utterance's loud frames."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.features.batched.moments import masked_mean, masked_std
from asr.settings.rule import Eps, number


class LoudFrameCMVN:
    """Shift and scale each bin to mean 0 and variance 1 over the frames that are nearly as loud as the loudest.

    Loudness and channel are divided out, as by `per_utterance`, but pauses do not count: silence that is inserted, or
    recorded before the speech begins, leaves the speech as it is. In fainter frames no bin is lower than the lowest
    of the loud ones, so that digital silence is not heard as something of its own either.

    Args:
        dynamic_range: frames whose mean log-mel energy is further below the loudest frame's are faint (natural log).
        min_std: what a constant bin is divided by instead of its standard deviation.
    """

    framewise = False

    def __init__(self, *, dynamic_range: Annotated[float, number(0, 100)], min_std: Eps) -> None:
        self.dynamic_range = dynamic_range
        self.min_std = min_std

    def __call__(self, features: Tensor) -> Tensor:
        """(T, F) to (T, F)."""
        if len(features) == 0:
            return features
        level = features.mean(dim=1)  # (T,)
        loud = features[level >= level.max() - self.dynamic_range]  # (N, F)
        mean = loud.mean(dim=0, dtype=torch.float64).to(loud)  # in float64 that of a constant bin is exact
        std = (loud - mean).square().mean(dim=0).sqrt()  # five times as fast as torch.std
        return (torch.maximum(features, loud.amin(dim=0)) - mean) / std.clamp(min=self.min_std)

    @property
    def batched(self) -> nn.Module:
        """The same for a padded batch."""
        return BatchedLoudFrameCMVN(self)

    def fit(self, features: object) -> None:
        """Nothing is learnt from the training set."""

    def files(self) -> dict[str, bytes]:
        """Nothing is kept."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Nothing is kept."""


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
        average = masked_mean(features, loud)
        return (features.maximum(lowest) - average) / masked_std(features - average, loud, self.min_std)
