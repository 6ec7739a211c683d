"""Multi-head self-attention with relative positions, within a limited distance, in time linear in the length."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from asr.base.kernels.local_attention import attend_near
from asr.base.kernels.positions import relative_positions
from asr.base.kernels.relative_attention import Projections
from asr.base.settings.rule import Bias, whole
from asr.components.encoder.block.attention.relative_attention import RelativeAttention


class LocalAttention(RelativeAttention):
    """`RelativeAttention` limited to the `context` frames before and after each frame.

    Time and memory are linear in the length. Each layer extends the receptive field by `context` frames on each side.

    *Source*: Rekesh et al. 2023 (Fast Conformer), arXiv:2305.05084, section 2.3, without its global token.

    Args:
        context: W, number of encoder frames on each side.
        bias: as in `RelativeAttention`.
    """

    def __init__(
        self, dim: int, num_heads: int, dropout: float, *, context: Annotated[int, whole(1, 4_096)], bias: Bias
    ) -> None:
        super().__init__(dim, num_heads, dropout, bias=bias)
        self.context = context

    def positions(self, x: Tensor) -> Tensor:
        """Encode the distances 2W-1 .. -(2W-1) between a block of W frames and its context as (4W - 1, D)."""
        return relative_positions(2 * self.context, x.shape[2], x.device).to(x.dtype)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to the valid frames within `context`; arguments and shapes as in `Attention`."""
        query, key, value = (self._heads(part) for part in self.qkv(x).chunk(3, dim=-1))  # (B, H, T, D / H)
        distance = self._heads(self.position(positions))  # (H, 4W - 1, D / H)
        projections = Projections(query + self.u, query + self.v, key, value, distance)
        out = attend_near(projections, padding_mask, self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))

    def extend(
        self, x: Tensor, before: Callable[[Tensor], Tensor] | None, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend to the frames within `context`; arguments and results as in `RelativeAttention`."""
        key = torch.arange(hidden.shape[2], device=x.device)
        apart = key[hidden.shape[2] - x.shape[1] :, None] - key  # (Q, M + Q), index of query - index of key
        return super().extend(x, before, positions, hidden | (apart.abs() > self.context))
