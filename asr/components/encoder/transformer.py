"""The Transformer encoder."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Dim, Layers
from asr.components.encoder.stack import numbered_blocks, run_blocks, with_blocks
from asr.interfaces import NO_TAPS, Encoded, NamedBlocks, Subsampling, Taps
from asr.lengths import padding_mask


class Transformer(nn.Module):
    """Convolutional subsampling, sinusoidal positions, and a stack of Transformer blocks.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        subsampling: makes the front-end, given F and D.
        block: makes a block, given D; the dropout of blocks is also that of their input.
    """

    streaming = None

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], Any],
    ) -> None:
        super().__init__()
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.blocks = nn.ModuleList(block(dim) for _ in range(num_layers))
        first = cast(Any, self.blocks[0])
        self.dropout = Dropout(first.dropout.p)  # of the blocks' input
        self.norm_output = first.residual.last(dim)

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2]).to(x.dtype)
        x = self.dropout(x + positions)
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, padding))
        return with_blocks(self.norm_output(x), lengths, blocks)
