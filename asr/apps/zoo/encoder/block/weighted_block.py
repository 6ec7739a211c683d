"""A Conformer's block with weighted residual connections, as in MedASR."""

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn

from asr.base.settings.rule import Bias, Eps, FeedForwardFactor, Heads, Probability, list_of, number
from asr.components.encoder.block.conformer_block import ConformerBlock
from asr.interfaces import ActivationMaker, Attention, Convolution, NormMaker

Weights = Annotated[list[float], list_of(number(-100, 100), "of two numbers from -100 to 100", 2, 2)]


class WeightedBlock(ConformerBlock):
    """A `ConformerBlock` with weights in the sums of a module's input and output, except in the attention's.

    The LayerNorms have no bias.

    *Source*: transformers' LasrEncoderBlock, the block of Google's MedASR.

    *Differs from the source*: there is also dropout of each residual branch, as in `ConformerBlock`.

    Args, in addition to those of `ConformerBlock`:
        feed_forward_weights: weights in the sum of a feed-forward module's input and its output.
        convolution_weights: weights in the sum of a convolution module's input and its output.
        eps: number that is added to the variance in each LayerNorm.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        feed_forward_bias: Bias,
        feed_forward_weights: Weights,
        convolution_weights: Weights,
        eps: Eps,
        dropout: Probability,
        attention: Callable[[int, int, float], Attention],
        convolution: Callable[[int, NormMaker, ActivationMaker], Convolution],
        norm: NormMaker,
        activation: ActivationMaker,
    ) -> None:
        self.eps = eps  # before the norms are made
        super().__init__(
            dim,
            num_heads=num_heads,
            feed_forward_factor=feed_forward_factor,
            feed_forward_bias=feed_forward_bias,
            dropout=dropout,
            attention=attention,
            convolution=convolution,
            norm=norm,
            activation=activation,
        )
        self.feed_forward_weights, self.convolution_weights = feed_forward_weights, convolution_weights

    def make_norm(self, dim: int) -> nn.Module:
        """Make one of the block's norms, except that of the convolution module."""
        return nn.LayerNorm(dim, self.eps, bias=False)

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the weighted sum of a feed-forward module's input and output."""
        keep, add = self.feed_forward_weights
        return keep * x + add * self.dropout(branch)

    def add_convolution(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the weighted sum of the convolution module's input and output."""
        keep, add = self.convolution_weights
        return keep * x + add * self.dropout(branch)
