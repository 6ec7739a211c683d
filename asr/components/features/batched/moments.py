"""Moments over the valid frames of a padded batch."""

from torch import Tensor


def masked_mean(features: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over valid frames, (B, 1, F); float64 makes the mean of a constant bin exact."""
    total = features.masked_fill(~valid[..., None], 0.0).double().sum(dim=1, keepdim=True)
    return (total / valid.sum(dim=1).clamp(min=1)[:, None, None]).to(features)


def masked_std(centered: Tensor, valid: Tensor, min_std: float) -> Tensor:
    """Return the standard deviation over valid frames, (B, 1, F), at least `min_std`; `centered` has mean 0."""
    squares = centered.masked_fill(~valid[..., None], 0.0).square().sum(dim=1, keepdim=True)
    return (squares / valid.sum(dim=1).clamp(min=1)[:, None, None]).sqrt().clamp(min=min_std)
