"""Multi-head self-attention within blocks of frames, with a learnt vector for each distance."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.block_attention import attend_in_blocks
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections
from asr.base.settings.rule import whole
from asr.errors import InputError

Frames = Annotated[int, whole(1, 4_096)]


class BlockAttention(nn.Module):
    """Self-attention of the frames of a block of `context` frames; the positions are those of `ShawAttention`.

    The blocks do not overlap; the first begins at the first frame. Time and memory are linear in the length.

    *Source*: transformers' GraniteSpeech5EncoderAttention; Saon et al. 2025 (Granite-speech), arXiv:2505.08699.

    Args:
        context: W, number of encoder frames in a block.
        max_distance: largest distance between query and key that has a vector, in encoder frames; at least W.

    Raises:
        InputError: `max_distance` is less than `context`.
    """

    streaming = None

    def __init__(self, dim: int, num_heads: int, dropout: float, *, context: Frames, max_distance: Frames) -> None:
        super().__init__()
        if max_distance < context:
            must = "encoder.block.attention.max_distance must be at least encoder.block.attention.context"
            raise InputError(f"{must}; got {max_distance} and {context}.")
        self.num_heads, self.context, self.max_distance = num_heads, context, max_distance
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.distances = nn.Embedding(2 * max_distance + 1, dim // num_heads)
        self.output = nn.Linear(dim, dim)

    def positions(self, x: Tensor) -> Tensor:
        """Return the rows of E for the distances W-1 .. -(W-1) from a query back to a key: (2W - 1,)."""
        back = torch.arange(self.context - 1, -self.context, -1, device=x.device)
        return self.max_distance - back

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to the valid frames of its block; arguments and shapes as in `Attention`."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        distance = self.distances(positions).to(query.dtype).expand(self.num_heads, -1, -1)  # (H, 2W - 1, D / H)
        out = attend_in_blocks(Projections(query, query, key, value, distance), padding_mask, self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))
