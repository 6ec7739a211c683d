"""Attention without positions, in two forms: the plain equation, and a fused kernel."""

import torch
from torch import Tensor

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.fused_attention import fused_attention


def attend(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Attend from Q queries to K keys.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.

    Args:
        query: (B, H, Q, D / H).
        key: (B, H, K, D / H), like `value`.
        hidden: True where a query must not attend to a key, (B, Q or 1, K).
        dropout: dropout of the weights.

    Returns:
        (B, H, Q, D / H); finite even if a query may not attend to any key.
    """
    drops = dropout.training and dropout.p > 0
    # On a CPU, torch has no fused attention with dropout, and draws dropout masks slowly.
    form = attend_plainly if drops and query.device.type == "cpu" else attend_fused
    return form(query, key, value, hidden, dropout)


def attend_plainly(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Compute all scores at once, as in the paper."""
    # Half of the lowest number, so that its sum with a score is finite.
    bias = torch.zeros_like(hidden, dtype=query.dtype).masked_fill(hidden, torch.finfo(query.dtype).min / 2)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + bias[:, None]
    return dropout(scores.softmax(dim=-1)) @ value


def attend_fused(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, dropout: Dropout) -> Tensor:
    """Use torch's kernels, whose memory is linear in K."""
    return fused_attention(query, key, value, ~hidden[:, None], dropout=dropout.p if dropout.training else 0.0)
