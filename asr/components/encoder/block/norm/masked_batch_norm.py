"""Batch normalisation that ignores padding."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps, Fraction
from asr.components.encoder.block.norm.moments import follow, sum_over_ranks


class MaskedBatchNorm(nn.Module):
    """Batch normalisation with statistics over the valid frames of all ranks.

    *Source*: Ioffe and Szegedy 2015, arXiv:1502.03167. Statistics are computed in float32, in two passes (mean, then
    deviations from the mean), because a single pass is inaccurate if the mean is large. If no rank has a valid frame,
    the running statistics do not change.

    Args:
        momentum: weight of the new batch in the running statistics.
        eps: number that is added to the variance.
    """

    framewise = True
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, dim: int, *, momentum: Fraction, eps: Eps) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise x (B, T, D) with padding_mask (B, T), to a finite result (B, T, D) in the dtype of x."""
        frames = x.to(self.weight.dtype)
        if not self.training:
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return torch.addcmul(self.bias - self.running_mean * scale, frames, scale).to(x.dtype)
        padding = padding_mask[:, :, None]  # (B, T, 1)
        own_frames = (~padding_mask).sum().to(frames.dtype)
        total, valid_frames = sum_over_ranks(frames.masked_fill(padding, 0.0).sum(dim=(0, 1)), own_frames)
        count = valid_frames.clamp(min=1)
        mean = total / count
        centered = (frames - mean).masked_fill(padding, 0.0)
        [total_square] = sum_over_ranks(centered.square().sum(dim=(0, 1)))
        var = total_square / count
        follow(self.running_mean, self.running_var, mean, var, valid_frames, self.momentum)
        return (centered * (self.weight * (var + self.eps).rsqrt()) + self.bias).to(x.dtype)
