"""Switchable normalisation: a trained mixture of instance, layer and batch normalisation."""

import torch
from torch import Tensor, nn

from asr.base.settings.rule import Eps, Fraction
from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.components.encoder.block.norm.moments import channel_moments, follow, sum_over_ranks, utterance_moments


class SwitchableNorm(MaskedBatchNorm):
    """Normalise by a weighted average of three means and a weighted average of three variances, with trained weights.

    They are computed over one channel of an utterance, over all channels of an utterance, and over one channel of the
    batch on all ranks. Only valid frames are included.

    *Source*: Luo et al. 2018, arXiv:1806.10779, equations 3 to 5. Statistics are computed in float32.

    *Differs from the paper*: evaluation uses running statistics of the training batches, as batch normalisation does;
    in the paper, the statistics of some training batches are computed again and averaged.
    """

    framewise = False

    def __init__(self, dim: int, *, momentum: Fraction, eps: Eps) -> None:
        super().__init__(dim, momentum=momentum, eps=eps)
        self.mean_weight = nn.Parameter(torch.ones(3))  # weights of instance, layer and batch before softmax
        self.var_weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Normalise x (B, T, D) with padding_mask (B, T), to a finite result (B, T, D) in the dtype of x."""
        frames = x.to(self.weight.dtype)
        instance = utterance_moments(frames, padding_mask)  # (B, 1, D)
        layer = channel_moments(*instance)  # (B, 1, 1)
        batch = self._batch_moments(*instance, padding_mask) if self.training else (self.running_mean, self.running_var)
        mean, var = (
            sum(share * part for share, part in zip(weight.softmax(dim=0), parts, strict=True))
            for weight, *parts in zip((self.mean_weight, self.var_weight), instance, layer, batch, strict=True)
        )  # (B, 1, D)
        centered = (frames - mean).masked_fill(padding_mask[:, :, None], 0.0)
        return (centered * (self.weight * (var + self.eps).rsqrt()) + self.bias).to(x.dtype)

    def _batch_moments(self, mean: Tensor, var: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the batch's moments, (D,), given the utterances' moments, (B, 1, D); update the running moments."""
        count = (~padding_mask).sum(dim=1)[:, None, None].to(mean.dtype)
        [valid_frames] = sum_over_ranks(count.sum())
        share = count / valid_frames.clamp(min=1)
        [batch_mean] = sum_over_ranks((share * mean).sum(dim=(0, 1)))
        [batch_var] = sum_over_ranks((share * (var + (mean - batch_mean).square())).sum(dim=(0, 1)))
        follow(self.running_mean, self.running_var, batch_mean, batch_var, valid_frames, self.momentum)
        return batch_mean, batch_var
