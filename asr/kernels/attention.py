"""Attention whose scores are products of query and key alone: as its paper writes it, and fused."""

import torch
from torch import Tensor

from asr.kernels.dropout import Dropout
from asr.kernels.fused_attention import fused_attention


def attend(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Attend from Q queries to K keys.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.

    Args:
        query: (B, H, Q, D / H).
        key: (B, H, K, D / H), like `value`.
        hidden: True where a key must not be seen, (B, Q or 1, K).
        dropout: of the weights.

    Returns:
        (B, H, Q, D / H); where no key may be seen it is finite.
    """
    drops = dropout.training and dropout.p > 0
    # On a processor torch has no fused form with dropout, and draws the masks slowly.
    form = attend_plainly if drops and query.device.type == "cpu" else attend_fused
    return form(query, key, value, hidden, dropout)


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """As the paper has it: all scores at once."""
    # Half of the lowest number, so that a sum with a score is a number.
    bias = torch.zeros_like(hidden, dtype=query.dtype).masked_fill(hidden, torch.finfo(query.dtype).min / 2)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + bias[:, None]
    return dropout(scores.softmax(dim=-1)) @ value


def attend_fused(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """By torch's kernels, whose memory is linear in K."""
    return fused_attention(query, key, value, ~hidden[:, None], dropout=dropout.p if dropout.training else 0.0)
