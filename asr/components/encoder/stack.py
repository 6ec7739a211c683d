"""Helpers of encoders that consist of blocks."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.errors import InputError
from asr.interfaces import Block, Encoded, NamedBlocks, Taps


def numbered_blocks(name: str, blocks: nn.ModuleList, dim: int, stride: int) -> NamedBlocks:
    """List the blocks of a ModuleList that all have the same dimension and stride.

    Args:
        name: name of the ModuleList in the encoder.
        blocks: blocks in order of use.
        dim: number of values per frame of a block's output.
        stride: feature frames per output frame.
    """
    return [(f"{name}.{number}", Block(block, dim, stride)) for number, block in enumerate(blocks)]


def run_blocks(
    blocks: Iterable[nn.Module],
    x: Tensor,
    padding_mask: Tensor,
    taps: Taps,
    call: Callable[[nn.Module, Tensor], Tensor],
    first: int = 0,
) -> tuple[Tensor, dict[int, Tensor]]:
    """Run the blocks one after another; a tap changes the input of the next block.

    Under autocast, each block's input is float32, whatever the subsampling, a tap or the block before returns, so that
    one compiled program fits all blocks.

    Args:
        blocks: blocks in order.
        x: input of the first block, (B, T', D).
        padding_mask: padding mask for the taps, (B, T').
        taps: taps by block index, from 0.
        call: runs a block; given the block and its input, it returns the output, (B, T', D).
        first: index of the first of these blocks among all blocks of the encoder.

    Returns:
        The output of the last block, (B, T', D), and the outputs of the tapped blocks before taps change them.
    """
    tapped: dict[int, Tensor] = {}
    for index, block in enumerate(blocks, first):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.float32)
        x = call(block, x)
        if index in taps:
            tapped[index] = x
            x = taps[index](x, padding_mask)
    return x, tapped


def with_blocks(out: Tensor, lengths: Tensor, blocks: Mapping[int, Tensor]) -> Encoded:
    """Return the output of an encoder whose blocks all have the frame rate of `out`.

    Args:
        out: encoder_out, (B, T', D).
        lengths: encoder_out_lengths, (B,).
        blocks: output of each tapped block, (B, T', D).
    """
    return Encoded(out, lengths, {index: Encoded(block, lengths, {}) for index, block in blocks.items()})


def check_heads(dim: int, num_heads: int, of_dim: str = "encoder", of_heads: str = "encoder.block") -> None:
    """Check that the dimension of a network fits its attention heads and sinusoidal positions.

    Args:
        dim: D, dimension of each encoder frame.
        num_heads: H, number of attention heads.
        of_dim: section of the setting `dim`, for the error message.
        of_heads: section of the setting `num_heads`.

    Raises:
        InputError: `dim` is odd, or not a multiple of `num_heads`.
    """
    if dim % num_heads or dim % 2:
        must = f"{of_dim}.dim must be even and a multiple of {of_heads}.num_heads"
        raise InputError(f"{must}; got dim={dim}, num_heads={num_heads}.")


class FeedForward(nn.Module):
    """A linear layer, the activation, dropout, and a second linear layer."""

    def __init__(self, dim: int, feed_forward_dim: int, dropout: float, activation: nn.Module, bias: bool) -> None:
        super().__init__()
        self.linear1 = nn.Linear(dim, feed_forward_dim, bias)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.linear2 = nn.Linear(feed_forward_dim, dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T', D) to (B, T', D)."""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))
