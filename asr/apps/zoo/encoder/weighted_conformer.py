"""A Conformer with weighted residual connections, as in MedASR."""

from collections.abc import Callable
from typing import Annotated, cast

from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Bias, Dim, Eps, FeedForwardFactor, Heads, Layers, Probability, list_of, number
from asr.components.encoder.conformer import FeedForward
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

Weights = Annotated[list[float], list_of(number(-100, 100), "of two numbers from -100 to 100", 2, 2)]


class WeightedConformer(nn.Module):
    """A Conformer whose residual connections have weights, whose LayerNorms have no bias, and with a last LayerNorm.

    *Source*: transformers' LasrEncoder, the encoder of Google's MedASR.

    *Differs from the source*: there is also dropout of each residual branch, as in `Conformer`.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: whether the linear layers of the feed-forward modules have a bias.
        feed_forward_weights: weights in the sum of a feed-forward module's input and its output.
        convolution_weights: weights in the sum of a convolution module's input and its output.
        eps: number that is added to the variance in each LayerNorm.
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
        feed_forward_weights: Weights,
        convolution_weights: Weights,
        eps: Eps,
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
            WeightedBlock(
                dim,
                feed_forward1=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                attention=attention(dim, num_heads, dropout),
                convolution=convolution(dim, norm, activation),
                feed_forward2=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                feed_forward_weights=feed_forward_weights,
                convolution_weights=convolution_weights,
                eps=eps,
                dropout=dropout,
            )
            for _ in range(num_layers)
        )
        self.positions = cast(WeightedBlock, self.blocks[0]).attention.positions
        self.norm_output = nn.LayerNorm(dim, eps, bias=False)

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = self.positions(x)
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, positions, padding))
        return with_blocks(self.norm_output(x), lengths, blocks)


class WeightedBlock(nn.Module):
    """The modules of `ConformerBlock`; each sum of a module's input and output is weighted, except the attention's."""

    def __init__(
        self,
        dim: int,
        feed_forward1: nn.Module,
        attention: Attention,
        convolution: Convolution,
        feed_forward2: nn.Module,
        feed_forward_weights: list[float],
        convolution_weights: list[float],
        eps: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.feed_forward_weights, self.convolution_weights = feed_forward_weights, convolution_weights
        self.norm_feed_forward1 = nn.LayerNorm(dim, eps, bias=False)
        self.feed_forward1 = feed_forward1
        self.norm_attention = nn.LayerNorm(dim, eps, bias=False)
        self.attention = attention
        self.norm_convolution = nn.LayerNorm(dim, eps, bias=False)
        self.convolution = convolution
        self.norm_feed_forward2 = nn.LayerNorm(dim, eps, bias=False)
        self.feed_forward2 = feed_forward2
        self.norm_output = nn.LayerNorm(dim, eps, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D) to (B, T', D); `positions` are computed by the attention, padding_mask is (B, T')."""
        (keep, add), (keep_convolved, add_convolved) = self.feed_forward_weights, self.convolution_weights
        x = keep * x + add * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), positions, padding_mask))
        convolved = self.dropout(self.convolution(self.norm_convolution(x), padding_mask))
        x = keep_convolved * x + add_convolved * convolved
        x = keep * x + add * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x)
