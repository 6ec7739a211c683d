"""Relative attention to near frames, in three forms: plain, `attend` with a mask, and `attend` by blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.choice import is_compiled, wants_plain
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections, attend, weighted_values


def attend_near(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Attend from every frame to the valid frames at most W away, before and after it.

    Args:
        projections: projections of all T frames, with 4W - 1 distances, 2W-1 .. -(2W-1).
        padding_mask: (B, T).
        dropout: dropout of the weights.

    Returns:
        (B, H, T, D / H); finite at padded frames.
    """
    if wants_plain():
        form = attend_near_by_blocks if is_compiled() and projections.key.is_cuda else attend_near_plainly
    else:  # for up to three blocks, computing all scores is less work than computing them by blocks
        few = 4 * projections.key.shape[2] <= 3 * (projections.distance.shape[1] + 1)
        form = attend_near_at_once if few else attend_near_by_blocks
    return form(projections, padding_mask, dropout)


def attend_near_plainly(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Compute all scores at once, and hide frames more than W away."""
    key = projections.key
    width, frame = _width(projections), torch.arange(key.shape[2], device=key.device)
    difference = frame[:, None] - frame  # (T, T), index of query - index of key
    column = (2 * width - 1 - difference).clamp(0, 4 * width - 2)
    hidden = padding_mask[:, None] | (difference.abs() > width)  # (B, T, T)
    return weighted_values(projections, column, hidden, dropout)


def attend_near_at_once(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Use `attend` for all frames, and hide frames more than W away; this is fast for short inputs."""
    width, frames, device = _width(projections), projections.key.shape[2], projections.key.device
    difference = torch.arange(frames - 1, -frames, -1, device=device)
    distance = projections.distance[:, (2 * width - 1 - difference).clamp(0, 4 * width - 2)]  # (H, 2T - 1, D / H)
    hidden = padding_mask[:, None]  # (B, 1, T)
    if frames > width + 1:
        frame = torch.arange(frames, device=device)
        hidden = hidden | ((frame[:, None] - frame).abs() > width)  # (B, T, T)
    return attend(projections._replace(distance=distance), hidden, dropout)


def attend_near_by_blocks(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Attend from each block of W frames to itself and to the blocks before and after it; linear in T."""
    to_key, to_distance, key, value, distance = projections
    width, (batch, heads, frames, size) = _width(projections), key.shape
    padding = -frames % width  # frames to fill the last block
    to_key, to_distance, key, value = (F.pad(x, (0, 0, 0, padding)) for x in (to_key, to_distance, key, value))
    valid = F.pad(~padding_mask, (0, padding))[:, None, :, None]  # (B, 1, n W, 1)
    by_key, by_distance = (_merge(x.unflatten(2, (-1, width))) for x in (to_key, to_distance))  # (B n, H, W, D / H)
    keys, values, is_valid = (_with_neighbours(x, width) for x in (key, value, valid))  # (B n, H, 3W, D / H)
    ahead = torch.arange(3 * width, device=key.device) - torch.arange(width, device=key.device)[:, None]  # (W, 3W)
    hidden = ~is_valid[:, 0].transpose(1, 2) | (ahead < 0) | (ahead > 2 * width)  # (B n, W, 3W)
    out = attend(Projections(by_key, by_distance, keys, values, distance), hidden, dropout)  # (B n, H, W, D / H)
    return out.unflatten(0, (batch, -1)).transpose(1, 2).reshape(batch, heads, -1, size)[:, :, :frames]


def _width(projections: Projections) -> int:
    """Return W, computed from the number of distances."""
    return (projections.distance.shape[1] + 1) // 4


def _merge(x: Tensor) -> Tensor:
    """Reshape (B, H, n, W, D / H) to (B n, H, W, D / H)."""
    return x.transpose(1, 2).flatten(0, 1)


def _with_neighbours(x: Tensor, width: int) -> Tensor:
    """Join each block of W frames with its neighbours, or zeros at the ends: (B, H, n W, S) to (B n, H, 3W, S)."""
    blocks = F.pad(x.unflatten(2, (-1, width)), (0, 0, 0, 0, 1, 1))  # (B, H, n + 2, W, S)
    return _merge(torch.cat([blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]], dim=3))
