"""Moments of the frames of a padded batch that count."""

from torch import Tensor


def masked_mean(features: Tensor, kept: Tensor) -> Tensor:
    """Mean over the kept frames, (B, 1, F); float64 makes that of a constant bin exact."""
    total = features.masked_fill(~kept[..., None], 0.0).double().sum(dim=1, keepdim=True)
    return (total / kept.sum(dim=1).clamp(min=1)[:, None, None]).to(features)


def masked_std(centered: Tensor, kept: Tensor, least: float) -> Tensor:
    """Standard deviation over the kept frames, (B, 1, F), at least `least`; `centered` is features minus mean."""
    squares = centered.masked_fill(~kept[..., None], 0.0).square().sum(dim=1, keepdim=True)
    return (squares / kept.sum(dim=1).clamp(min=1)[:, None, None]).sqrt().clamp(min=least)
