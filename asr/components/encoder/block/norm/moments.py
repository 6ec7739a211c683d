"""Means and variances of valid frames: of utterances, of batches over all ranks, and running statistics."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor


def utterance_moments(frames: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of each channel of each utterance, (B, 1, D) each; both are 0 without valid frames.

    There are two passes (mean, then deviations from it), because a single pass is inaccurate if the mean is large.

    Shapes: frames (B, T, D), padding_mask (B, T).
    """
    padding = padding_mask[:, :, None]
    count = (~padding).sum(dim=1, keepdim=True).clamp(min=1)
    mean = frames.masked_fill(padding, 0.0).sum(dim=1, keepdim=True) / count
    return mean, (frames - mean).masked_fill(padding, 0.0).square().sum(dim=1, keepdim=True) / count


def channel_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and variance over all channels, (..., 1) each, given the moments of each channel, (..., D) each."""
    together = mean.mean(dim=-1, keepdim=True)
    return together, (var + (mean - together).square()).mean(dim=-1, keepdim=True)


@torch.no_grad()
def follow(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, valid_frames: Tensor, momentum: float
) -> None:
    """Update running statistics with the moments of a batch; as in torch's batch norm, the variance is unbiased.

    Args:
        running_mean: running mean, (D,), changed in place.
        running_var: running variance, (D,), changed in place.
        mean: mean of the batch over all ranks, (D,).
        var: biased variance of the batch over all ranks, (D,).
        valid_frames: number of valid frames of the batch over all ranks, (); 0: the running statistics do not change.
        momentum: weight of the batch in the running statistics.
    """
    weight = momentum * valid_frames.clamp(max=1)  # 0 if there is no frame; an `if` would synchronise with the GPU
    running_mean.lerp_(mean, weight)
    running_var.lerp_(var * valid_frames.clamp(min=1) / (valid_frames - 1).clamp(min=1), weight)


def sum_over_ranks(*tensors: Tensor) -> Sequence[Tensor]:
    """Sum each tensor over all ranks, in one collective operation, with gradients; all have the same dtype."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return tensors
    sums = dist_nn.all_reduce(torch.cat([tensor.flatten() for tensor in tensors]))
    parts = sums.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
