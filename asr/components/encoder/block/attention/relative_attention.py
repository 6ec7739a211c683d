"""Multi-head self-attention with relative positions, from every frame to every frame."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.positions import relative_positions
from asr.base.kernels.relative_attention import Projections, attend
from asr.base.settings.rule import Bias


class RelativeAttention(nn.Module):
    """Self-attention whose scores depend on the distance between query and key.

    *Source*: Dai et al. 2019 (Transformer-XL), arXiv:1901.02860, section 3.3; each layer has its own `u` and `v`.

    Args:
        bias: whether the linear layers of queries, keys, values and outputs have a bias; scores by position always
            have the bias `v`.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, *, bias: Bias) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim, bias)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.position = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.v = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.output = nn.Linear(dim, dim, bias)

    @property
    def streaming(self) -> Self:
        """Return this object, which can attend to frames of earlier chunks."""
        return self

    def positions(self, x: Tensor) -> Tensor:
        """Encode the distances T-1 .. -(T-1) between the frames of x (B, T, D) as (2T - 1, D)."""
        return relative_positions(x.shape[1], x.shape[2], x.device).to(x.dtype)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to every valid frame; arguments and shapes as in `Attention`."""
        return self.extend(x, None, positions, padding_mask[:, None])[0]

    def extend(
        self, x: Tensor, before: Callable[[Tensor], Tensor] | None, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend as in `StreamingAttention`; `positions`, (2Q + M - 1, D), encode the distances Q+M-1 .. -(Q-1)."""
        dim = x.shape[2]
        query, keys_values = self.qkv(x).split([dim, 2 * dim], dim=-1)
        if before is not None:
            keys_values = torch.cat([before(keys_values), keys_values], dim=1)
        query, key, value = (self._heads(part) for part in (query, *keys_values.chunk(2, dim=-1)))  # (B, H, Q, D / H)
        distance = self._heads(self.position(positions))  # (H, 2Q + M - 1, D / H)
        out = attend(Projections(query + self.u, query + self.v, key, value, distance), hidden, self.dropout)
        return self.output(out.transpose(1, 2).flatten(2)), keys_values

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
