"""Multi-head self-attention with relative positions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Sines (even channels) and cosines (odd) of `positions`, (P,) to (P, dim).

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, device=positions.device) / dim)  # (dim / 2,)
    angles = positions[:, None].to(frequencies.dtype) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def relative_positions(num_frames: int, dim: int, device: torch.device) -> Tensor:
    """Encodings of the distances T-1 .. -(T-1) from a query back to a key, (2T - 1, dim)."""
    return sinusoids(torch.arange(num_frames - 1, -num_frames, -1, device=device), dim)


def relative_shift(scores: Tensor) -> Tensor:
    """Turn scores by distance into scores by key.

    Row i of the result starts at column T-1-i of row i, where distance i - j is i: in the flattened matrix that is
    one element earlier each row, so the shift is a view with rows of 2T-2. Nothing is copied.

    Args:
        scores: (B, H, T, 2T - 1), columns for the distances T-1 .. -(T-1).

    Returns:
        (B, H, T, T), column j for the distance i - j.
    """
    frames = scores.shape[2]
    if frames == 1:
        return scores
    row = 2 * frames - 2
    flat = scores.flatten(2)[:, :, frames - 1 : frames - 1 + frames * row]
    return flat.unflatten(2, (frames, row))[..., :frames]


class RelativeAttention(nn.Module):
    """Self-attention whose scores know how far apart query and key are.

    *Source*: Dai et al. 2019 (Transformer-XL), arXiv:1901.02860, section 3.3: a score is
    ((q + u) k + (q + v) r) / sqrt(head dim), with r the projected encoding of the distance; `u` and `v` are this
    layer's own.

    Args:
        dim: D.
        num_heads: H; must divide D.
        dropout: of the attention weights.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.position = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.v = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to every valid one.

        Args:
            x: (B, T, D).
            positions: `relative_positions`, (2T - 1, D).
            padding_mask: (B, T).

        Returns:
            (B, T, D); finite at padded frames.
        """
        query, key, value = (self._heads(part) for part in self.qkv(x).chunk(3, dim=-1))  # (B, H, T, D / H)
        distance = self._heads(self.position(positions)[None])  # (1, H, 2T - 1, D / H)
        by_distance = relative_shift((query + self.v) @ distance.transpose(-1, -2))  # (B, H, T, T)
        bias = by_distance * query.shape[-1] ** -0.5  # sdpa scales its own product, not the bias
        out = F.scaled_dot_product_attention(
            query + self.u,
            key,
            value,
            attn_mask=bias.masked_fill(padding_mask[:, None, None, :], float("-inf")),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
