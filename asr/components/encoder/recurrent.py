"""Recurrent encoders."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import SWITCH, Dim, Layers, Probability
from asr.components.encoder.stack import numbered_blocks, run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, NamedBlocks, Subsampling, Taps
from asr.lengths import padding_mask


class Recurrent(nn.Module):
    """Convolutional subsampling and a stack of recurrent layers.

    *Source*: Graves et al. 2013, arXiv:1303.5778.

    Args:
        dim: D, dimension of both directions together.
        num_layers: number of blocks.
        bidirectional: whether each layer also runs from the last frame to the first.
        dropout: dropout of the output of each layer.
        subsampling: makes the front-end, given F and D.
        cell: makes a layer of one direction, given its input and output dimensions.
    """

    streaming = None

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        bidirectional: Annotated[bool, SWITCH],
        dropout: Probability,
        subsampling: Callable[[int, int], Subsampling],
        cell: Callable[[int, int], nn.Module],
    ) -> None:
        super().__init__()
        directions = 1 + bidirectional
        if dim % directions:
            raise InputError(f"encoder.dim must be even, for two directions; got {dim}.")
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.blocks = nn.ModuleList(
            RecurrentBlock([cell(dim, dim // directions) for _ in range(directions)], dropout)
            for _ in range(num_layers)
        )

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        frame = torch.arange(x.shape[1], device=x.device)
        backwards = torch.where(padding, frame, lengths[:, None] - 1 - frame)  # (B, T')
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, backwards))
        return with_blocks(x, lengths, blocks)


class RecurrentBlock(nn.Module):
    """A layer that runs from the first frame to the last and, with two cells, also from the last to the first."""

    def __init__(self, cells: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, backwards: Tensor) -> Tensor:
        """Map (B, T', D) to (B, T', D); `backwards`, (B, T'), has each utterance's frame indices in reverse order."""
        forward, *backward = self.cells
        outs = [forward(x), *(_in_order(cell(_in_order(x, backwards)), backwards) for cell in backward)]
        return self.dropout(torch.cat(outs, dim=-1))


def _in_order(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order[:, :, None].expand_as(x))
