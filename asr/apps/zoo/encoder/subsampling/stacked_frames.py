"""A front-end that concatenates neighbouring frames."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Probability, whole
from asr.lengths import Lengths, padding_mask


class StackedFrames(nn.Module):
    """Concatenate each `factor` frames; LayerNorm, and a linear layer.

    Frames at the end that do not fill an encoder frame are left out: T' = floor(T / factor).

    *Source*: the feature projection of w2v-BERT 2.0, arXiv:2312.05187, section 3.2.1, whose `factor` is 2.

    Args:
        factor: number of feature frames of an encoder frame.
        dropout: dropout after the linear layer.
    """

    streaming = None

    def __init__(
        self, input_dim: int, output_dim: int, *, factor: Annotated[int, whole(1, 100)], dropout: Probability
    ) -> None:
        super().__init__()
        self.stride = factor
        self.norm = nn.LayerNorm(factor * input_dim)
        self.linear = nn.Linear(factor * input_dim, output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); without a whole encoder frame, T' is 1, and the frame is padding."""
        x = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)
        x = grouped(x, self.stride).flatten(2)
        return self.dropout(self.linear(self.norm(x))), self.output_lengths(feature_lengths)

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return feature_lengths // self.stride


def grouped(x: Tensor, size: int) -> Tensor:
    """Divide frames into groups: map (B, T, F) to (B, T', size, F); without a whole group, zeros complete one."""
    if x.shape[1] < size:
        x = F.pad(x, (0, 0, 0, size - x.shape[1]))
    groups = x.shape[1] // size
    complete = torch.arange(groups * size, device=x.device)
    return x.index_select(1, complete).unflatten(1, (groups, size))  # a slice could not be exported
