"""Group normalisation: statistics over groups of channels of an utterance."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps, whole
from asr.components.encoder.block.norm.moments import channel_moments, utterance_moments
from asr.errors import InputError


class GroupNorm(nn.Module):
    """Normalise each group of channels over the valid frames of its utterance; the result is independent of the batch.

    *Source*: Wu and He 2018, arXiv:1803.08494. Statistics are computed in float32.

    Args:
        num_groups: number of groups of adjacent channels, of equal size; must divide dim.
        eps: number that is added to the variance.
    """

    framewise = False

    def __init__(self, dim: int, *, num_groups: Annotated[int, whole(1, 65_536)], eps: Eps) -> None:
        super().__init__()
        if dim % num_groups:
            must = "encoder.block.norm.num_groups must divide the number of channels"
            raise InputError(f"{must}; got num_groups={num_groups} and {dim} channels.")
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise x (B, T, D) with padding_mask (B, T), to a finite result (B, T, D) in the dtype of x."""
        frames = x.to(self.weight.dtype)
        grouped = (part.unflatten(-1, (self.num_groups, -1)) for part in utterance_moments(frames, padding_mask))
        mean, var = (part.expand(-1, -1, -1, x.shape[2] // self.num_groups) for part in channel_moments(*grouped))
        centered = (frames - mean.flatten(-2)).masked_fill(padding_mask[:, :, None], 0.0)
        return (centered * (self.weight * (var.flatten(-2) + self.eps).rsqrt()) + self.bias).to(x.dtype)
