"""Multi-head self-attention with relative positions, from every frame to those near it: linear in the length."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.encoder.attention.relative_attention import RelativeAttention
from asr.encoder.relative import attend, relative_positions
from asr.settings import whole


class LocalAttention(RelativeAttention):
    """`RelativeAttention` to the frames that are at most `context` away, before and behind.

    Time and memory are linear in the length, and a frame sees `context` more to each side with every layer.

    *Source*: Rekesh et al. 2023 (Fast Conformer), arXiv:2305.05084, section 2.3, without its global token.

    Args:
        dim: D.
        num_heads: H; must divide D.
        dropout: of the attention weights.
        context: W, in frames of T'.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, *, context: Annotated[int, whole(1, 4_096)]) -> None:
        super().__init__(dim, num_heads, dropout)
        self.context = context

    def positions(self, x: Tensor) -> Tensor:
        """Encode the distances between a block of W frames and what it sees, 2W-1 .. -(2W-1), (4W - 1, D)."""
        return relative_positions(2 * self.context, x.shape[2], x.device).to(x.dtype)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to every valid one that is near.

        Args:
            x: (B, T, D).
            positions: what `positions` gives.
            padding_mask: (B, T).

        Returns:
            (B, T, D); finite at padded frames.
        """
        width, (batch, frames, _) = self.context, x.shape
        behind = -frames % width  # frames that fill the last block
        query, key, value = F.pad(self.qkv(x), (0, 0, 0, behind)).chunk(3, dim=-1)  # (B, n W, D)
        padding = F.pad(padding_mask, (0, behind), value=True)
        distance = self._heads(self.position(positions))  # (H, 4W - 1, D / H)
        query = self._heads(query.unflatten(1, (-1, width)).flatten(0, 1))  # (B n, H, W, D / H)
        key, value = (self._heads(self._with_neighbours(part)) for part in (key, value))  # (B n, H, 3W, D / H)
        hidden = ~self._with_neighbours(~padding[..., None]).transpose(1, 2)  # (B n, 1, 3W)
        ahead = torch.arange(3 * width, device=x.device) - torch.arange(width, device=x.device)[:, None]  # (W, 3W)
        hidden = hidden | (ahead < 0) | (ahead > 2 * width)
        out = attend(query + self.u, query + self.v, key, value, distance, hidden, self.dropout)
        out = out.transpose(1, 2).flatten(2).unflatten(0, (batch, -1)).flatten(1, 2)  # (B, n W, D)
        return self.output(out[:, :frames])

    def _with_neighbours(self, x: Tensor) -> Tensor:
        """Blocks of W frames, each between those before and behind it, or zeros, (B, n W, D) to (B n, 3W, D)."""
        x = F.pad(x.unflatten(1, (-1, self.context)), (0, 0, 0, 0, 1, 1))  # (B, n + 2, W, D)
        return torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], dim=2).flatten(0, 1)
