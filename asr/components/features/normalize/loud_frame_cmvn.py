"""Normalisation by the statistics of an utterance's loud frames."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps, number
from asr.components.features.batched.moments import masked_mean, masked_std


class LoudFrameCMVN:
    """Shift and scale each bin to mean 0 and variance 1 over the loud frames.

    Like `per_utterance`, this removes the effects of loudness and channel, but pauses do not count: inserted or leading
    silence does not change the features of the speech. In frames that are not loud, each bin is raised to at least its
    minimum over the loud frames, so that digital silence and low noise have equal features.

    Args:
        dynamic_range: maximum difference in mean log-mel energy (natural logarithm) between the loudest frame and a
            frame that counts as loud.
        min_std: lower bound of the divisor, for constant bins.
    """

    framewise = False

    def __init__(self, *, dynamic_range: Annotated[float, number(0, 100)], min_std: Eps) -> None:
        self.dynamic_range = dynamic_range
        self.min_std = min_std

    def __call__(self, features: Tensor) -> Tensor:
        """Map (T, F) to (T, F)."""
        if len(features) == 0:
            return features
        level = features.mean(dim=1)  # (T,)
        loud = features[level >= level.max() - self.dynamic_range]  # (N, F)
        mean = loud.mean(dim=0, dtype=torch.float64).to(loud)  # in float64 the mean of a constant bin is exact
        std = (loud - mean).square().mean(dim=0).sqrt()  # five times as fast as torch.std
        return (torch.maximum(features, loud.amin(dim=0)) - mean) / std.clamp(min=self.min_std)

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return BatchedLoudFrameCMVN(self)

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class BatchedLoudFrameCMVN(nn.Module):
    """`LoudFrameCMVN` of a padded batch."""

    def __init__(self, normalize: LoudFrameCMVN) -> None:
        super().__init__()
        self.dynamic_range = normalize.dynamic_range
        self.min_std = normalize.min_std

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        level = features.mean(dim=2).masked_fill(padding, -math.inf)  # (B, T)
        loud = (level >= level.amax(dim=1, keepdim=True) - self.dynamic_range) & ~padding
        lowest = features.masked_fill(~loud[..., None], math.inf).amin(dim=1, keepdim=True)
        average = masked_mean(features, loud)
        return (features.maximum(lowest) - average) / masked_std(features - average, loud, self.min_std)
