"""Multi-head self-attention with a learnt vector for each distance, as in w2v-BERT 2.0."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.relative_attention import Projections, attend
from asr.base.settings.rule import whole

Frames = Annotated[int, whole(0, 4_096)]


class ShawAttention(nn.Module):
    """Self-attention whose scores depend on the distance between query and key, up to a largest distance.

    A score is q (k + E[d]) / sqrt(D / H). E has a vector for each distance d from the query to the key; keys further
    away than `left` or `right` have the vector of the largest distance. The vectors are the same for all heads.

    *Source*: Shaw et al. 2018, arXiv:1803.02155, section 3.2, without the vectors that are added to values.

    Args:
        left: largest distance to a frame before the query, in encoder frames.
        right: largest distance to a frame after the query, in encoder frames.
    """

    streaming = None

    def __init__(self, dim: int, num_heads: int, dropout: float, *, left: Frames, right: Frames) -> None:
        super().__init__()
        self.num_heads, self.left, self.right = num_heads, left, right
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.distances = nn.Embedding(left + right + 1, dim // num_heads)
        self.output = nn.Linear(dim, dim)

    def positions(self, x: Tensor) -> Tensor:
        """Return the rows of E for the distances T-1 .. -(T-1) from a query back to a key of x (B, T, D): (2T - 1,)."""
        back = torch.arange(x.shape[1] - 1, -x.shape[1], -1, device=x.device)
        return (-back).clamp(-self.left, self.right) + self.left

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame to every valid frame; arguments and shapes as in `Attention`."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        distance = self.distances(positions).to(query.dtype).expand(self.num_heads, -1, -1)  # (H, 2T - 1, D / H)
        out = attend(Projections(query, query, key, value, distance), padding_mask[:, None], self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))
