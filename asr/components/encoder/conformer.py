"""The Conformer encoder."""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Bias, Dim, FeedForwardFactor, Heads, Layers, Probability
from asr.components.encoder.stack import check_heads, numbered_blocks, run_blocks, with_blocks
from asr.interfaces import (
    NO_TAPS,
    ActivationMaker,
    Attention,
    Convolution,
    Encoded,
    NamedBlocks,
    NormMaker,
    Subsampling,
    Taps,
)
from asr.lengths import padding_mask


class Conformer(nn.Module):
    """Convolutional subsampling and a stack of Conformer blocks.

    *Source*: Gulati et al. 2020, arXiv:2005.08100.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: whether the linear layers of the feed-forward modules have a bias.
        dropout: dropout of each residual branch, of the feed-forward activation and of the attention weights.
        subsampling: makes the front-end, given F and D.
        attention: makes the self-attention of a block, given D, num_heads and dropout.
        convolution: makes the convolution module of a block, given D, the norm and the activation.
        norm: makes the norm of the convolution module, given D.
        activation: makes the activation of each feed-forward and convolution module.
    """

    streaming = None

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        feed_forward_bias: Bias,
        dropout: Probability,
        subsampling: Callable[[int, int], Subsampling],
        attention: Callable[[int, int, float], Attention],
        convolution: Callable[[int, NormMaker, ActivationMaker], Convolution],
        norm: NormMaker,
        activation: ActivationMaker,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        feed_forward_dim = round(feed_forward_factor * dim)
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.blocks = nn.ModuleList(
            ConformerBlock(
                dim,
                feed_forward1=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                attention=attention(dim, num_heads, dropout),
                convolution=convolution(dim, norm, activation),
                feed_forward2=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                dropout=dropout,
            )
            for _ in range(num_layers)
        )
        self.positions = cast(ConformerBlock, self.blocks[0]).attention.positions

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = self.positions(x)
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, positions, padding))
        return with_blocks(x, lengths, blocks)


class ConformerBlock(nn.Module):
    """Feed-forward, self-attention, convolution and feed-forward modules, and a final LayerNorm.

    Each module has a LayerNorm before it and a residual connection around both. The feed-forward modules' outputs are
    halved.
    """

    def __init__(
        self,
        dim: int,
        feed_forward1: nn.Module,
        attention: Attention,
        convolution: Convolution,
        feed_forward2: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(dim)
        self.feed_forward1 = feed_forward1
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention
        self.norm_convolution = nn.LayerNorm(dim)
        self.convolution = convolution
        self.norm_feed_forward2 = nn.LayerNorm(dim)
        self.feed_forward2 = feed_forward2
        self.norm_output = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D) to (B, T', D); `positions` are computed by the attention, padding_mask is (B, T')."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), positions, padding_mask))
        x = x + self.dropout(self.convolution(self.norm_convolution(x), padding_mask))
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x)


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
