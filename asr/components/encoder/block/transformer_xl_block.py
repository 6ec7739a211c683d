"""The block of a Transformer-XL."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections, attend
from asr.components.encoder.block.transformer_block import TransformerBlock
from asr.components.encoder.stack import FeedForward


class TransformerXLBlock(TransformerBlock):
    """Self-attention with a memory, and feed-forward, each with a LayerNorm and a residual connection.

    *Source*: Dai et al. 2019, arXiv:1901.02860, section 3.3; each block has its own `u` and `v`.
    """

    def make_attention(self, dim: int, dropout: float) -> None:
        """Make the weights of the self-attention."""
        self.attention = MemoryAttention(dim, self.num_heads, dropout)

    def make_feed_forward(self, dim: int, feed_forward_dim: int, dropout: float, activation: nn.Module) -> None:
        """Make the weights of the feed-forward sub-layer."""
        self.feed_forward = FeedForward(dim, feed_forward_dim, dropout, activation, bias=True)

    def forward(  # type: ignore[override]  # has more arguments than in TransformerBlock
        self, x: Tensor, memory: Tensor, positions: Tensor, hidden: Tensor
    ) -> Tensor:
        """Map x (B, Q, D) and memory (B, M, D) to (B, Q, D); `positions` and `hidden` as in `MemoryAttention`."""
        inner, memory = (self.residual.enter(frames, self.norm_attention) for frames in (x, memory))
        branch = self.attention(inner, memory, positions, hidden)
        x = self.residual.leave(x, self.dropout(branch), self.norm_attention)
        branch = self.feed_forward(self.residual.enter(x, self.norm_feed_forward))
        return self.residual.leave(x, self.dropout(branch), self.norm_feed_forward)


class MemoryAttention(nn.Module):
    """`RelativeAttention` that also attends to a memory, as in arXiv:1901.02860, section 3.3."""

    reads_weights_of = ("qkv",)  # its weights are read without calling it, so an adapter would have no effect

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.position = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.v = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Attend from a segment to its memory and itself.

        Args:
            x: frames of the segment, (B, Q, D).
            memory: frames before the segment, (B, M, D).
            positions: encodings of the distances Q + M - 1 .. -(Q - 1), (2 Q + M - 1, D).
            hidden: True where a key is masked, (B, Q or 1, M + Q).

        Returns:
            The output, (B, Q, D), which is finite at padded frames.
        """
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        dim = x.shape[2]
        remembered = linear(memory, self.qkv.weight[dim:], self.qkv.bias[dim:]).chunk(2, dim=-1)
        query = self._heads(query)  # (B, H, Q, D / H)
        key, value = (
            self._heads(torch.cat(parts, dim=1)) for parts in zip(remembered, (key, value), strict=True)
        )  # (B, H, M + Q, D / H)
        distance = self._heads(self.position(positions))  # (H, 2 Q + M - 1, D / H)
        out = attend(Projections(query + self.u, query + self.v, key, value, distance), hidden, self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
