"""Instance normalisation: statistics of each channel of each utterance."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps
from asr.components.encoder.block.norm.moments import utterance_moments


class InstanceNorm(nn.Module):
    """Normalise each channel over the valid frames of its utterance; the result is independent of the batch.

    *Source*: Ulyanov et al. 2016, arXiv:1607.08022. Statistics are computed in float32.

    Args:
        eps: number that is added to the variance.
    """

    framewise = False

    def __init__(self, dim: int, *, eps: Eps) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise x (B, T, D) with padding_mask (B, T), to a finite result (B, T, D) in the dtype of x."""
        frames = x.to(self.weight.dtype)
        mean, var = utterance_moments(frames, padding_mask)  # (B, 1, D)
        centered = (frames - mean).masked_fill(padding_mask[:, :, None], 0.0)
        return (centered * (self.weight * (var + self.eps).rsqrt()) + self.bias).to(x.dtype)
