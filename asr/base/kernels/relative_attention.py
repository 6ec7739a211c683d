"""Attention whose scores depend on the distance between query and key: a plain form, and a form that works in blocks.

*Source*: Dai et al. 2019 (Transformer-XL), arXiv:1901.02860, section 3.3: a score is ((q + u) k + (q + v) r) /
sqrt(head dim), where r is the projected encoding of the distance.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.choice import is_compiled, wants_plain
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.fused_attention import fused_attention

CPU_BLOCK, BLOCK = 2**18, 2**28  # scores in memory at a time: on a CPU (fits a core's cache), on a GPU
ALIGNED = 16  # numbers of keys for which torch's fused kernel needs no padding of its own, forward and backward
MIN_QUERIES = 64  # minimum number of queries at a time, because small matrix products are slow


class Projections(NamedTuple):
    """Projections of Q queries and K keys, split into H heads.

    Args:
        to_key: q + u, (B, H, Q, D / H).
        to_distance: q + v, (B, H, Q, D / H).
        key: (B, H, K, D / H).
        value: (B, H, K, D / H).
        distance: r of each distance, (H, distances, D / H), in descending order; a distance is positive if the key is
            before the query.
    """

    to_key: Tensor
    to_distance: Tensor
    key: Tensor
    value: Tensor
    distance: Tensor


def attend(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Attend from Q consecutive queries to K consecutive keys.

    Args:
        projections: projections with Q + K - 1 distances; the first is the distance of the last query to the first key.
        hidden: True where a query must not attend to a key, (B, Q or 1, K).
        dropout: dropout of the weights.

    Returns:
        (B, H, Q, D / H); finite even if a query may not attend to any key.
    """
    if not wants_plain():
        form = attend_by_blocks
    else:
        form = attend_at_once if is_compiled() and projections.key.is_cuda else attend_plainly
    return form(projections, hidden, dropout)


def attend_plainly(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Compute all scores at once, as in the paper."""
    queries, keys, device = projections.to_key.shape[2], projections.key.shape[2], projections.key.device
    column = torch.arange(keys, device=device) + torch.arange(queries - 1, -1, -1, device=device)[:, None]
    return weighted_values(projections, column, hidden, dropout)


def weighted_values(projections: Projections, column: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Weigh values by the softmax of their scores; `column` (Q, K) has the index in `distance` for each pair."""
    to_key, to_distance, key, value, distance = projections
    by_distance = to_distance @ distance.transpose(-1, -2)  # (B, H, Q, distances)
    by_distance = by_distance.gather(3, column.expand(*by_distance.shape[:2], -1, -1))  # (B, H, Q, K)
    scores = (to_key @ key.transpose(-1, -2) + by_distance) * key.shape[-1] ** -0.5
    return dropout((scores + _bias(hidden, key)[:, None]).softmax(dim=-1)) @ value


def attend_by_blocks(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Compute a few utterances, heads and queries at a time, using only the distances from these queries to the keys.

    The scores fit into a CPU's cache, and without gradients memory is linear in K. The result is exact.
    """
    to_key, to_distance, key, value, distance = projections
    queries, keys = to_key.shape[2], key.shape[2]
    max_scores = BLOCK if key.is_cuda else CPU_BLOCK * torch.get_num_threads()
    heads = min(to_key.shape[1], max(1, max_scores // (MIN_QUERIES * keys)))
    size = max(MIN_QUERIES, max_scores // (heads * keys))
    utterances, size = max(1, size // queries), min(size, queries)
    scale = key.shape[-1] ** -0.5
    bias = _bias(hidden, key)[:, None].expand(-1, -1, queries, -1)  # (B, 1, Q, K)
    out = []
    for *parts, part_bias in zip(
        *(part.split(utterances) for part in (to_key * scale, to_distance * scale, key, value, bias)), strict=True
    ):
        by_head = zip(*(part.split(heads, dim=1) for part in (distance.mT[None], *parts)), strict=True)
        out.append(torch.cat([_by_rows(size, part_bias, dropout, *head_parts) for head_parts in by_head], dim=1))
    return torch.cat(out)


def attend_at_once(projections: Projections, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Compute all utterances, heads and queries at a time; on a GPU, with a fused kernel.

    Hidden keys are appended up to a multiple of ALIGNED. torch's kernel treats other numbers differently, so a compiled
    program would be made twice.
    """
    to_key, to_distance, key, value, distance = projections
    scale, more = key.shape[-1] ** -0.5, -key.shape[2] % ALIGNED
    bias = relative_shift((to_distance * scale) @ distance.mT) + _bias(hidden, key)[:, None]
    bias = F.pad(bias, (0, more), value=torch.finfo(bias.dtype).min / 2)
    key, value = (F.pad(part, (0, 0, 0, more)) for part in (key, value))
    return _weighted(to_key * scale, key, value, bias, dropout)


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
    """Attend from `size` queries at a time; `distance` is (1, H, D / H, Q + K - 1)."""
    first, queries, columns = 0, to_key.shape[2], distance.shape[3]
    out = value.new_empty(to_key.shape)  # allocated once: rows allocated one by one would fragment the memory
    for by_key, by_distance, part_bias in zip(
        *(part.split(size, dim=2) for part in (to_key, to_distance, bias)), strict=True
    ):
        end = first + by_key.shape[2]
        near = distance[..., queries - end : columns - first]
        out[:, :, first:end] = _weighted(by_key, key, value, relative_shift(by_distance @ near) + part_bias, dropout)
        first = end
    return out


def _weighted(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: Dropout) -> Tensor:
    """Compute softmax(query key + bias) value."""
    if query.is_cuda:
        p = dropout.p if dropout.training else 0.0
        return fused_attention(query, key, value, bias, dropout=p, scale=1.0)
    # On a CPU, torch has no fused attention with a bias and gradients.
    return dropout((bias + query @ key.transpose(-1, -2)).softmax(dim=-1)) @ value


def scores_by_key(scores: Tensor) -> Tensor:
    """Convert scores by distance to scores by key, for Q queries that are also the last of K keys.

    Args:
        scores: (B, H, Q, Q + K - 1), by descending distance.

    Returns:
        (B, H, Q, K): scores of each query and key.
    """
    if not wants_plain():
        return relative_shift(scores)
    queries, distances = scores.shape[2:]
    first = torch.arange(queries - 1, -1, -1, device=scores.device)[:, None]  # column of the first key, by query
    column = first + torch.arange(distances - queries + 1, device=scores.device)
    return scores.gather(3, column.expand(*scores.shape[:2], -1, -1))


def relative_shift(scores: Tensor) -> Tensor:
    """Convert scores by distance to scores by key, for Q consecutive queries.

    Row i of the result is row i of the scores from column Q-1-i on. This column decreases by 1 from row to row, so in
    memory the rows of the result begin Q+K-2 elements apart, while the rows of the scores begin Q+K-1 elements apart.
    The result is a view with a row stride of Q+K-2; nothing is copied.

    Args:
        scores: (B, H, Q, Q + K - 1), by descending distance; not a view into a larger tensor.

    Returns:
        (B, H, Q, K): scores of each query and key.
    """
    batch, heads, queries, distances = scores.shape
    shape = (batch, heads, queries, distances - queries + 1)
    stride = (heads * queries * distances, queries * distances, distances - 1, 1)
    return scores.contiguous().as_strided(shape, stride, queries - 1)


def _bias(hidden: Tensor, like: Tensor) -> Tensor:
    """Return a bias for the scores, which makes the weights of hidden keys 0.

    The bias is half of the lowest number, so that its sum with a score is finite.
    """
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill(hidden, torch.finfo(like.dtype).min / 2)
