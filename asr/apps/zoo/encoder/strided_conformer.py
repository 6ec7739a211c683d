"""A Conformer whose first blocks halve the frame rate."""

from collections.abc import Callable, Sequence
from typing import Annotated, cast

from torch import Tensor, nn

from asr.apps.zoo.encoder.subsampling.stacked_frames import grouped
from asr.base.settings.rule import Bias, Dim, FeedForwardFactor, Heads, Layers, Probability, whole
from asr.components.encoder.conformer import ConformerBlock, FeedForward
from asr.components.encoder.stack import check_heads, run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import (
    NO_TAPS,
    ActivationMaker,
    Attention,
    Block,
    Convolution,
    Encoded,
    NamedBlocks,
    NormMaker,
    Subsampling,
    Taps,
)
from asr.lengths import Lengths, padding_mask

STRIDE = 2


class StridedConformer(nn.Module):
    """A stack of Conformer blocks, the first of which have stride 2, so that the other blocks see fewer frames.

    *Source*: Burchi and Vielzeuf 2021 (Efficient Conformer), arXiv:2109.01163, section 3.1; transformers'
    GraniteSpeech5Encoder, whose residual connection is the mean of two frames.

    *Differs from the source*: a strided block computes its convolution at all frames and takes every other output, so
    that any convolution module fits. Only a batch norm's statistics in training differ: they cover all frames.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        num_strided_layers: number of blocks with stride 2.
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: whether the linear layers of the feed-forward modules have a bias.
        dropout: dropout, as in `Conformer`.
        subsampling: makes the front-end, given F and D.
        attention: makes the self-attention of a block, given D, num_heads and dropout.
        convolution: makes the convolution module of a block, given D, the norm and the activation.
        norm: makes the norm of the convolution module, given its number of channels.
        activation: makes the activation of each feed-forward and convolution module.

    Raises:
        InputError: there are more strided blocks than blocks.
    """

    streaming = None

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        num_strided_layers: Annotated[int, whole(0, 10)],
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
        if num_strided_layers > num_layers:
            must = "encoder.num_strided_layers must be at most encoder.num_layers"
            raise InputError(f"{must}; got {num_strided_layers} and {num_layers}.")
        feed_forward_dim = round(feed_forward_factor * dim)
        self.output_dim = dim
        self.num_strided_layers = num_strided_layers
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride * STRIDE**num_strided_layers
        self.blocks = nn.ModuleList(
            (StridedBlock if number < num_strided_layers else ConformerBlock)(
                dim,
                feed_forward1=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                attention=attention(dim, num_heads, dropout),
                convolution=convolution(dim, norm, activation),
                feed_forward2=FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                dropout=dropout,
            )
            for number in range(num_layers)
        )
        self.positions = cast(ConformerBlock, self.blocks[0]).attention.positions

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        stride, last = self.subsampling.stride, self.num_strided_layers
        return [
            (f"blocks.{number}", Block(block, self.output_dim, stride * STRIDE ** min(number + 1, last)))
            for number, block in enumerate(self.blocks)
        ]

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return self.subsampling.output_lengths(feature_lengths) // STRIDE**self.num_strided_layers

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        tapped: dict[int, Encoded] = {}
        strided, others = [*self.blocks][: self.num_strided_layers], [*self.blocks][self.num_strided_layers :]
        for index, block in enumerate(strided):
            x, lengths, blocks, *_ = self._run([block], index, x, lengths, STRIDE, taps)
            tapped.update(blocks)
        encoded = self._run(others, len(strided), x, lengths, 1, taps)
        return encoded._replace(blocks={**tapped, **encoded.blocks})

    def _run(
        self, blocks: Sequence[nn.Module], first: int, x: Tensor, lengths: Tensor, stride: int, taps: Taps
    ) -> Encoded:
        """Run blocks with one input frame rate; `first` is the index of the first. Only a single block has a stride."""
        padding, positions = padding_mask(lengths, x.shape[1]), self.positions(x)
        lengths = lengths // stride
        after = padding_mask(lengths, max(1, x.shape[1] // stride))
        x, tapped = run_blocks(blocks, x, after, taps, lambda block, x: block(x, positions, padding), first)
        return with_blocks(x, lengths, tapped)


class StridedBlock(ConformerBlock):
    """A `ConformerBlock` of stride 2; in the convolution's residual connection, each two frames become their mean."""

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T', D), T' = floor(T / 2), but at least 1; arguments as in `ConformerBlock`."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), positions, padding_mask))
        branch = self.convolution(self.norm_convolution(x), padding_mask)
        x = grouped(x, STRIDE).mean(dim=2) + self.dropout(grouped(branch, STRIDE)[:, :, 0])
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x)
