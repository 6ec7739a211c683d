"""Relative attention to the frames that are near: with a mask over all frames, plainly and fast, and block by block."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.kernels.choice import wants_plain
from asr.kernels.dropout import Dropout
from asr.kernels.relative_attention import attend, weighted_values


def attend_near(
    to_key: Tensor,
    to_distance: Tensor,
    key: Tensor,
    value: Tensor,
    distance: Tensor,
    padding_mask: Tensor,
    dropout: Dropout,
) -> Tensor:
    """Attend from every frame to the valid ones that are at most W away, before and behind.

    Args:
        to_key: q + u, (B, H, T, D / H).
        to_distance: q + v, (B, H, T, D / H).
        key: (B, H, T, D / H), like `value`.
        distance: r, (H, 4W - 1, D / H), for the distances 2W-1 .. -(2W-1).
        padding_mask: (B, T).
        dropout: of the weights.

    Returns:
        (B, H, T, D / H); finite at padded frames.
    """
    if wants_plain():
        form = attend_near_plainly
    else:  # up to three blocks, all scores are fewer than those of each block and its neighbours
        form = attend_near_at_once if 4 * key.shape[2] <= 3 * (distance.shape[1] + 1) else attend_near_by_blocks
    return form(to_key, to_distance, key, value, distance, padding_mask, dropout)


def attend_near_plainly(
    to_key: Tensor,
    to_distance: Tensor,
    key: Tensor,
    value: Tensor,
    distance: Tensor,
    padding_mask: Tensor,
    dropout: Dropout,
) -> Tensor:
    """All scores at once, those of frames that are further away hidden."""
    width, frame = (distance.shape[1] + 1) // 4, torch.arange(key.shape[2], device=key.device)
    apart = frame[:, None] - frame  # (T, T), query less key
    column = (2 * width - 1 - apart).clamp(0, 4 * width - 2)
    hidden = padding_mask[:, None] | (apart.abs() > width)  # (B, T, T)
    return weighted_values(to_key, to_distance, key, value, distance, column, hidden, dropout)


def attend_near_at_once(
    to_key: Tensor,
    to_distance: Tensor,
    key: Tensor,
    value: Tensor,
    distance: Tensor,
    padding_mask: Tensor,
    dropout: Dropout,
) -> Tensor:
    """As attention to all frames, those that are further away hidden: for few frames."""
    width, frames = (distance.shape[1] + 1) // 4, key.shape[2]
    apart = torch.arange(frames - 1, -frames, -1, device=key.device)
    distance = distance[:, (2 * width - 1 - apart).clamp(0, 4 * width - 2)]  # (H, 2T - 1, D / H)
    hidden = padding_mask[:, None]  # (B, 1, T)
    if frames > width + 1:
        frame = torch.arange(frames, device=key.device)
        hidden = hidden | ((frame[:, None] - frame).abs() > width)  # (B, T, T)
    return attend(to_key, to_distance, key, value, distance, hidden, dropout)


def attend_near_by_blocks(
    to_key: Tensor,
    to_distance: Tensor,
    key: Tensor,
    value: Tensor,
    distance: Tensor,
    padding_mask: Tensor,
    dropout: Dropout,
) -> Tensor:
    """From each block of W frames to itself and the blocks before and behind it: linear in T."""
    width, (batch, heads, frames, size) = (distance.shape[1] + 1) // 4, key.shape
    behind = -frames % width  # frames that fill the last block
    to_key, to_distance, key, value = (F.pad(x, (0, 0, 0, behind)) for x in (to_key, to_distance, key, value))
    valid = F.pad(~padding_mask, (0, behind))[:, None, :, None]  # (B, 1, n W, 1)
    by_key, by_distance = (_merge(x.unflatten(2, (-1, width))) for x in (to_key, to_distance))  # (B n, H, W, D / H)
    keys, values, there = (_with_neighbours(x, width) for x in (key, value, valid))  # (B n, H, 3W, D / H)
    ahead = torch.arange(3 * width, device=key.device) - torch.arange(width, device=key.device)[:, None]  # (W, 3W)
    hidden = ~there[:, 0].transpose(1, 2) | (ahead < 0) | (ahead > 2 * width)  # (B n, W, 3W)
    out = attend(by_key, by_distance, keys, values, distance, hidden, dropout)  # (B n, H, W, D / H)
    return out.unflatten(0, (batch, -1)).transpose(1, 2).reshape(batch, heads, -1, size)[:, :, :frames]


def _merge(x: Tensor) -> Tensor:
    """(B, H, n, W, D / H) to (B n, H, W, D / H)."""
    return x.transpose(1, 2).flatten(0, 1)


def _with_neighbours(x: Tensor, width: int) -> Tensor:
    """Blocks of W frames, each between those before and behind it, or zeros, (B, H, n W, S) to (B n, H, 3W, S)."""
    blocks = F.pad(x.unflatten(2, (-1, width)), (0, 0, 0, 0, 1, 1))  # (B, H, n + 2, W, S)
    return _merge(torch.cat([blocks[:, :, :-2], blocks[:, :, 1:-1], blocks[:, :, 2:]], dim=3))
