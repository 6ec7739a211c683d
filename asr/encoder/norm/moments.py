"""Means and variances over frames that are real: of each utterance, over all ranks, and of the batches so far."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor


def utterance_moments(frames: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel of each utterance, (B, T, D), (B, T) to (B, 1, D) twice; 0 without a frame.

    In two passes (mean, then deviations from it), as one pass loses digits where the mean is large.
    """
    padding = padding_mask[:, :, None]
    count = (~padding).sum(dim=1, keepdim=True).clamp(min=1)
    mean = frames.masked_fill(padding, 0.0).sum(dim=1, keepdim=True) / count
    return mean, (frames - mean).masked_fill(padding, 0.0).square().sum(dim=1, keepdim=True) / count


def channel_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of channels together, of those of each channel: (..., D) to (..., 1) twice."""
    together = mean.mean(dim=-1, keepdim=True)
    return together, (var + (mean - together).square()).mean(dim=-1, keepdim=True)


@torch.no_grad()
def follow(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, valid_frames: Tensor, momentum: float
) -> None:
    """Move running statistics towards a batch's, the variance towards the unbiased one, as torch's batch norm does.

    Args:
        running_mean: (D,), changed in place, as is `running_var`.
        mean: of the batch over all ranks, (D,).
        var: the same, over the number of frames.
        valid_frames: of the batch over all ranks, (); where there is none, nothing is learnt.
        momentum: weight of the batch.
    """
    weight = momentum * valid_frames.clamp(max=1)  # 0 without a frame; an `if` would wait for the GPU
    running_mean.lerp_(mean, weight)
    running_var.lerp_(var * valid_frames.clamp(min=1) / (valid_frames - 1).clamp(min=1), weight)


def sum_over_ranks(x: Tensor) -> Tensor:
    """Sum over all ranks, with gradients; x itself where there is but one."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return x
    return dist_nn.all_reduce(x)
