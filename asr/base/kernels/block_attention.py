"""Relative attention within blocks of frames, in two forms: plain, and block by block."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.choice import is_compiled, wants_plain
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections, attend, weighted_values


def attend_in_blocks(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Attend from every frame to the valid frames of its block of W frames; the first block begins at the first frame.

    Args:
        projections: projections of all T frames, with 2W - 1 distances, W-1 .. -(W-1).
        padding_mask: (B, T).
        dropout: dropout of the weights.

    Returns:
        (B, H, T, D / H); finite at padded frames.
    """
    is_plain = wants_plain() and not (is_compiled() and projections.key.is_cuda)
    return (attend_in_blocks_plainly if is_plain else attend_block_by_block)(projections, padding_mask, dropout)


def attend_in_blocks_plainly(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Compute all scores at once, and hide the frames of other blocks."""
    width, frame = _width(projections), torch.arange(projections.key.shape[2], device=projections.key.device)
    column = (width - 1 - (frame[:, None] - frame)).clamp(0, 2 * width - 2)  # (T, T)
    block = frame // width
    hidden = padding_mask[:, None] | (block[:, None] != block)  # (B, T, T)
    return weighted_values(projections, column, hidden, dropout)


def attend_block_by_block(projections: Projections, padding_mask: Tensor, dropout: Dropout) -> Tensor:
    """Attend in each block; time and memory are linear in T."""
    *parts, distance = projections
    width, (batch, _, frames, _) = _width(projections), projections.key.shape
    missing = -frames % width  # frames to fill the last block
    hidden = F.pad(padding_mask, (0, missing), value=True).reshape(-1, 1, width)  # (B n, 1, W)
    to_key, to_distance, key, value = (  # (B n, H, W, D / H)
        F.pad(part, (0, 0, 0, missing)).unflatten(2, (-1, width)).transpose(1, 2).flatten(0, 1) for part in parts
    )
    out = attend(Projections(to_key, to_distance, key, value, distance), hidden, dropout)
    return out.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :frames]


def _width(projections: Projections) -> int:
    """Return W, computed from the number of distances."""
    return (projections.distance.shape[1] + 1) // 2
