"""Multi-head self-attention with rotary positions."""

import torch
from torch import Tensor, nn

from asr.base.kernels.attention import attend
from asr.base.kernels.choice import exact
from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Bias
from asr.errors import InputError


class RotaryAttention(nn.Module):
    """Self-attention whose queries and keys are rotated by an angle proportional to their frame index.

    Channels 2i and 2i + 1 of a head's query and key at frame t are rotated by t / 10000^(2i / (D / H)). The score of a
    query and a key therefore depends only on their distance, without an additional term for positions.

    *Source*: Su et al. 2021 (RoFormer), arXiv:2104.09864, section 3.2.2; in a Conformer: Li et al. 2021,
    arXiv:2107.05907.

    Args:
        num_heads: H, number of attention heads; D / H must be even.
        bias: whether the projections to queries, keys, values and outputs have a bias.
    """

    streaming = None

    def __init__(self, dim: int, num_heads: int, dropout: float, *, bias: Bias) -> None:
        super().__init__()
        if dim // num_heads % 2:
            must = "encoder.dim / encoder.block.num_heads must be even for encoder.block.attention=rotary_attention"
            raise InputError(f"{must}; got dim={dim}, num_heads={num_heads}.")
        self.num_heads = num_heads
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim, bias)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.output = nn.Linear(dim, dim, bias)

    def positions(self, x: Tensor) -> Tensor:
        """Compute the cosines and sines of the angles for x (B, T, D): (2, T, D / H / 2), in float32 or float64."""
        size = x.shape[2] // self.num_heads
        dtype = exact(x.device)  # in float32 the angles are off by 0.003 after an hour
        frame = torch.arange(x.shape[1], device=x.device, dtype=dtype)
        channel = torch.arange(0, size, 2, device=x.device, dtype=dtype)
        angles = frame[:, None] * 10000.0 ** (-channel / size)  # (T, D / H / 2)
        return torch.stack([angles.cos(), angles.sin()]).to(torch.promote_types(x.dtype, torch.float32))

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to every valid frame; arguments and shapes as in `Attention`."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (turn(part, positions).to(value.dtype) for part in (query, key))  # (B, H, T, D / H)
        out = attend(query, key, value, padding_mask[:, None], self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate each pair of channels of x, (..., T, D / H), by its angle; `positions` is (2, T, D / H / 2)."""
    (cos, sin), (even, odd) = positions, x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
