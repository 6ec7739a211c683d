"""The Zipformer encoder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import list_of, odd, whole
from asr.components.encoder.stack import numbered_blocks, run_blocks, with_blocks
from asr.components.encoder.zipformer_parts import Bypass, Pooling, repeated
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, NamedBlocks, Subsampling, Taps
from asr.lengths import Lengths, padding_mask

OUTPUT_STRIDE = 2  # frames of the stacks' inputs per encoder frame
EACH = "with a number for each stack, such as"
Dims = Annotated[list[int], list_of(whole(1, 65_536), f"{EACH} [192, 256, 192]", least=1)]
Numbers = Annotated[list[int], list_of(whole(1, 1_024), f"{EACH} [2, 4, 2]", least=1)]
KernelSizes = Annotated[list[int], list_of(odd(1_001), f"of odd numbers {EACH} [31, 15, 31]", least=1)]
Block = Callable[[int, int, int, int], nn.Module]


class Zipformer(nn.Module):
    """A front-end of 50 frames per second, stacks of blocks at lower frame rates, and an output with half the rate.

    The input of a stack is cut or padded with zeros to the stack's dimension. A stack with a stride sees the mean of
    each group of frames; its output frames are repeated and joined to its input by a bypass. Each channel of the
    encoder's output comes from the last stack that has this channel.

    *Source*: Yao et al. 2023, arXiv:2310.11230.

    *Differs from the paper*: an incomplete group of frames is completed with the utterance's own last frame, not with
    that of the batch. In training, there is only dropout: no Balancer, no Whitener and no skipping of modules.

    Args:
        dims: D of each stack; the largest is that of the output.
        layers: number of blocks of each stack.
        strides: frames of the front-end per frame in the blocks of each stack.
        heads: number of attention heads in the blocks of each stack.
        feed_forward_dims: inner dimension of the second feed-forward module in the blocks of each stack; the first has
            3/4 of it, the third 5/4.
        kernel_sizes: kernel size of the convolutions in the blocks of each stack, in frames of the stack; odd.
        subsampling: makes the front-end, given F and the dimension of the first stack.
        block: makes a block, given D, the number of heads, the inner dimension and the kernel size.

    Raises:
        InputError: the lists have different lengths, or the encoder needs another kind of block.
    """

    streaming = None

    def __init__(
        self,
        input_dim: int,
        *,
        dims: Dims,
        layers: Numbers,
        strides: Numbers,
        heads: Numbers,
        feed_forward_dims: Dims,
        kernel_sizes: KernelSizes,
        subsampling: Callable[[int, int], Subsampling],
        block: Block,
    ) -> None:
        super().__init__()
        lists = {"dims": dims, "layers": layers, "strides": strides, "heads": heads}
        _check_lengths({**lists, "feed_forward_dims": feed_forward_dims, "kernel_sizes": kernel_sizes})
        self.output_dim = max(dims)
        self.subsampling = subsampling(input_dim, dims[0])
        self.stride = OUTPUT_STRIDE * self.subsampling.stride
        sizes = zip(dims, heads, feed_forward_dims, kernel_sizes, strict=True)
        self.stacks = nn.ModuleList(
            Stack([block(*size) for _ in range(number)], size[0], stride)
            for number, stride, size in zip(layers, strides, sizes, strict=True)
        )
        self.pooling = Pooling(OUTPUT_STRIDE)

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return [
            named
            for number, stack in enumerate(cast("list[Stack]", [*self.stacks]))
            for named in numbered_blocks(
                f"stacks.{number}.blocks", stack.blocks, stack.dim, self.subsampling.stride * stack.stride
            )
        ]

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return (self.subsampling.output_lengths(feature_lengths) + OUTPUT_STRIDE - 1) // OUTPUT_STRIDE

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        return self.through(*self.subsampling(features, feature_lengths), taps, at_once)

    def through(self, x: Tensor, lengths: Tensor, taps: Taps, prepare: "Prepare") -> Encoded:
        """Run the stacks over the front-end's output x (B, T, D) with lengths (B,)."""
        outs: list[Tensor] = []
        tapped: dict[int, Encoded] = {}
        first = 0  # index of the stack's first block
        for stack in cast("list[Stack]", [*self.stacks]):
            x = F.pad(x, (0, stack.dim - x.shape[2]))  # a negative number cuts
            x, blocks = stack(x, lengths, taps, first, prepare)
            outs.append(x)
            tapped |= blocks
            first += len(stack.blocks)
        out, lengths = self.pooling(_widest(outs), lengths)
        return Encoded(out, lengths, tapped)


class Stack(nn.Module):
    """Blocks of one size at one frame rate."""

    def __init__(self, blocks: Sequence[nn.Module], dim: int, stride: int) -> None:
        super().__init__()
        self.dim, self.stride = dim, stride
        self.pooling = Pooling(stride) if stride > 1 else None
        self.blocks = nn.ModuleList(blocks)
        self.bypass = Bypass(dim) if stride > 1 else None

    def forward(
        self, x: Tensor, lengths: Tensor, taps: Taps, first: int, prepare: "Prepare"
    ) -> tuple[Tensor, Mapping[int, Encoded]]:
        """Map (B, T, D) to (B, T, D), and the outputs of the tapped blocks; `first` is the index of the first block."""
        out = x
        if self.pooling is not None:
            out, lengths = self.pooling(x, lengths)
        padding = padding_mask(lengths, out.shape[1])
        out, blocks = run_blocks(self.blocks, out, padding, taps, prepare(self, out, lengths, padding), first)
        tapped = with_blocks(out, lengths, blocks).blocks
        if self.bypass is not None:
            out = self.bypass(x, repeated(out, self.stride, x.shape[1]))
        return out, tapped


Prepare = Callable[[Stack, Tensor, Tensor, Tensor], Callable[[nn.Module, Tensor], Tensor]]
"""Given a stack, its input (B, T, D), lengths (B,) and the padding mask (B, T), makes a function that runs a block."""


def at_once(stack: Stack, x: Tensor, lengths: Tensor, padding: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
    """Make the function that runs a block of a stack over whole utterances."""
    positions = cast(Any, stack.blocks[0]).positions(x)
    return lambda block, x: block(x, positions, padding)


def _widest(outs: Sequence[Tensor]) -> Tensor:
    """Take each channel from the last output that has it; (B, T, D of the stack) each."""
    parts: list[Tensor] = []
    channels = 0
    for out in reversed(outs):
        if out.shape[2] > channels:
            parts.append(out[:, :, channels:])
            channels = out.shape[2]
    return torch.cat(parts, dim=2)


def _check_lengths(lists: Mapping[str, Sequence[int]]) -> None:
    """Check that each setting of the stacks has the same number of values."""
    first, *others = lists
    for name in others:
        if len(lists[name]) != len(lists[first]):
            must = f"encoder.{name} must have a number for each of the {len(lists[first])} stacks of encoder.{first}"
            raise InputError(f"{must}; got {len(lists[name])} numbers: {[*lists[name]]}.")
