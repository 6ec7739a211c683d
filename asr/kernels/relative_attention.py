"""Attention whose scores know how far apart query and key are: as its paper writes it, and block by block.

*Source*: Dai et al. 2019 (Transformer-XL), arXiv:1901.02860, section 3.3: a score is ((q + u) k + (q + v) r) /
sqrt(head dim), with r the projected encoding of the distance.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from asr.kernels.choice import wants_plain
from asr.kernels.dropout import Dropout
from asr.kernels.fused_attention import fused_attention

CPU_BLOCK, BLOCK = 2**18, 2**28  # scores that are there at a time: what a core's cache holds; what fits a GPU
FEWEST_QUERIES = 64  # at a time, however many keys: small matrix products are slow


class Projections(NamedTuple):
    """Projections of Q frames that attend and of K frames that are attended to, by heads.

    Args:
        to_key: q + u, (B, H, Q, D / H).
        to_distance: q + v, (B, H, Q, D / H).
        key: (B, H, K, D / H).
        value: (B, H, K, D / H).
        distance: r, (H, distances, D / H), the largest distance of a query from a key before it first.
    """

    to_key: Tensor
    to_distance: Tensor
    key: Tensor
    value: Tensor
    distance: Tensor


def attend(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Attend from Q queries that follow each other to K keys that do.

    Args:
        projections: with Q + K - 1 distances, the first that of the last query from the first key.
        hidden: True where a key must not be seen, (B, Q or 1, K).
        dropout: of the weights.

    Returns:
        (B, H, Q, D / H); where no key may be seen it is finite.
    """
    form = attend_plainly if wants_plain() else attend_by_blocks
    return form(projections, hidden, dropout)


def attend_plainly(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """As the paper has it: all scores at once."""
    queries, keys, device = projections.to_key.shape[2], projections.key.shape[2], projections.key.device
    column = torch.arange(keys, device=device) + torch.arange(queries - 1, -1, -1, device=device)[:, None]
    return weighted_values(projections, column, hidden, dropout)


def weighted_values(projections: Projections, column: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Weigh values by the softmax of their scores; `column` says where in `distance` that of a pair is, (Q, K)."""
    to_key, to_distance, key, value, distance = projections
    by_distance = to_distance @ distance.transpose(-1, -2)  # (B, H, Q, distances)
    by_distance = by_distance.gather(3, column.expand(*by_distance.shape[:2], -1, -1))  # (B, H, Q, K)
    scores = (to_key @ key.transpose(-1, -2) + by_distance) * key.shape[-1] ** -0.5
    return dropout((scores + _bias(hidden, key)[:, None]).softmax(dim=-1)) @ value


def attend_by_blocks(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Attend from few utterances, heads and queries at a time, with only the distances that these need.

    Their scores stay in a processor's cache, and without gradients memory is linear in K. The result is exact.
    """
    to_key, to_distance, key, value, distance = projections
    queries, keys, most = to_key.shape[2], key.shape[2], BLOCK if key.is_cuda else CPU_BLOCK * torch.get_num_threads()
    heads = min(to_key.shape[1], max(1, most // (FEWEST_QUERIES * keys)))
    size = max(FEWEST_QUERIES, most // (heads * keys))
    utterances, size = max(1, size // queries), min(size, queries)
    scale = key.shape[-1] ** -0.5
    bias = _bias(hidden, key)[:, None].expand(-1, -1, queries, -1)  # (B, 1, Q, K)
    out = []
    for *parts, there in zip(
        *(part.split(utterances) for part in (to_key * scale, to_distance * scale, key, value, bias)), strict=True
    ):
        by_head = zip(*(part.split(heads, dim=1) for part in (distance.mT[None], *parts)), strict=True)
        out.append(torch.cat([_by_rows(size, there, dropout, *some) for some in by_head], dim=1))
    return torch.cat(out)


def _by_rows(
    size: int,
    bias: Tensor,
    dropout: Dropout,
    distance: Tensor,
    to_key: Tensor,
    to_distance: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    """Attend from `size` queries at a time; distance (1, H, D / H, Q + K - 1)."""
    first, queries, columns = 0, to_key.shape[2], distance.shape[3]
    out = value.new_empty(to_key.shape)  # rows kept one by one would lie in between what is freed
    for by_key, by_distance, there in zip(
        *(part.split(size, dim=2) for part in (to_key, to_distance, bias)), strict=True
    ):
        end = first + by_key.shape[2]
        near = distance[..., queries - end : columns - first]
        out[:, :, first:end] = _weighted(by_key, key, value, relative_shift(by_distance @ near) + there, dropout)
        first = end
    return out


def _weighted(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: Dropout) -> Tensor:
    """softmax(query key + bias) value."""
    if query.is_cuda:
        p = dropout.p if dropout.training else 0.0
        return fused_attention(query, key, value, bias, dropout=p, scale=1.0)
    # On a processor torch has no fast form of it with a bias and gradients.
    return dropout((bias + query @ key.transpose(-1, -2)).softmax(dim=-1)) @ value


def relative_shift(scores: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, for Q queries that follow each other.

    Row i of the result starts at column Q-1-i of row i: in memory that is one element earlier each row, so the shift
    is a view with rows of Q+K-2. Nothing is copied.

    Args:
        scores: (B, H, Q, Q + K - 1); each column a distance less than the one before.

    Returns:
        (B, H, Q, K), column j for the distance of its query from key j.
    """
    batch, heads, queries, distances = scores.shape
    shape = (batch, heads, queries, distances - queries + 1)
    stride = (heads * queries * distances, queries * distances, distances - 1, 1)
    return scores.contiguous().as_strided(shape, stride, scores.storage_offset() + queries - 1)


def _bias(hidden: Tensor, like: Tensor) -> Tensor:
    """What is added to the scores of keys that must not be seen: the weight of e to that is 0.

    Half of the lowest number, so that a sum with a score is a number.
    """
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, torch.finfo(like.dtype).min / 2)
