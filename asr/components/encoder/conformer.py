"""The Conformer encoder."""

from collections.abc import Callable
from itertools import accumulate
from operator import mul
from typing import Annotated, ClassVar, cast

from torch import Tensor, nn

from asr.base.settings.rule import SWITCH, Dim, Layers
from asr.components.encoder.stack import run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Block, ConformerPart, Encoded, NamedBlocks, Subsampling, Taps
from asr.lengths import Lengths, padding_mask

LastNorm = Annotated[bool, SWITCH]


class Conformer(nn.Module):
    """A front-end with a lower frame rate, and a stack of blocks.

    *Source*: Gulati et al. 2020, arXiv:2005.08100.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        last_norm: whether a norm like those in the blocks follows the last block.
        subsampling: makes the front-end, given F and D.
        block: makes a block, given D.

    Raises:
        InputError: the encoder needs another kind of block.
    """

    streaming = None
    takes_chunks: ClassVar[bool] = False  # whether the blocks continue from chunk to chunk

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        last_norm: LastNorm,
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], ConformerPart],
    ) -> None:
        super().__init__()
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride
        self.blocks = nn.ModuleList(cast(nn.Module, block(dim)) for _ in range(num_layers))
        self.norm_output = self.first_block.make_norm(dim) if last_norm else nn.Identity()
        if (self.first_block.streaming is not None) != self.takes_chunks:
            must = f"encoder.block must {'' if self.takes_chunks else 'not '}be a block of a streaming encoder"
            given = f"{type(self.first_block).__name__} in {type(self).__name__}"
            raise InputError(f"{must}; got {given}. encoder=conformer_streaming_* need encoder/block=streaming_block.")

    @property
    def first_block(self) -> ConformerPart:
        """The first block, whose positions are those of all blocks."""
        return cast(ConformerPart, self.blocks[0])

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        blocks = [cast(ConformerPart, block) for block in self.blocks]
        _, *strides = accumulate((block.stride for block in blocks), mul, initial=self.subsampling.stride)
        modules = zip(self.blocks, blocks, strides, strict=True)
        return [(f"blocks.{n}", Block(module, block.dim, stride)) for n, (module, block, stride) in enumerate(modules)]

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return self.subsampling.output_lengths(feature_lengths)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = self.first_block.positions(x)
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, positions, padding))
        return with_blocks(self.norm_output(x), lengths, blocks)
