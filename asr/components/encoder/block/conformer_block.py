"""The block of a Conformer."""

from collections.abc import Callable

from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Bias, FeedForwardFactor, Heads, Probability
from asr.components.encoder.stack import FeedForward, check_heads
from asr.interfaces import ActivationMaker, Attention, Convolution, NormMaker

Mix = Callable[[Tensor], Tensor]


class ConformerBlock(nn.Module):
    """Feed-forward, self-attention, convolution and feed-forward modules, and a final LayerNorm.

    Each module has a LayerNorm before it and a residual connection around both. The feed-forward modules' outputs are
    halved.

    *Source*: Gulati et al. 2020, arXiv:2005.08100, section 2.

    Args:
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: whether the linear layers of the feed-forward modules have a bias.
        dropout: dropout of each residual branch, of the feed-forward activation and of the attention weights.
        attention: makes the self-attention, given D, num_heads and dropout.
        convolution: makes the convolution module, given D, the norm and the activation.
        norm: makes the norm of the convolution module, given its number of channels.
        activation: makes the activation of each feed-forward and convolution module.
    """

    stride = 1
    streaming = None

    def __init__(
        self,
        dim: int,
        *,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        feed_forward_bias: Bias,
        dropout: Probability,
        attention: Callable[[int, int, float], Attention],
        convolution: Callable[[int, NormMaker, ActivationMaker], Convolution],
        norm: NormMaker,
        activation: ActivationMaker,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.dim, self.num_heads = dim, num_heads
        self.feed_forward_dim = round(feed_forward_factor * dim)
        self.norm_feed_forward1 = self.make_norm(dim)
        self.feed_forward1 = FeedForward(dim, self.feed_forward_dim, dropout, activation(), feed_forward_bias)
        self.norm_attention = self.make_norm(dim)
        self.attention = attention(dim, num_heads, dropout)
        self.norm_convolution = self.make_norm(dim)
        self.convolution = convolution(dim, norm, activation)
        self.norm_feed_forward2 = self.make_norm(dim)
        self.feed_forward2 = FeedForward(dim, self.feed_forward_dim, dropout, activation(), feed_forward_bias)
        self.norm_output = self.make_norm(dim)
        self.dropout = Dropout(dropout)

    def make_norm(self, dim: int) -> nn.Module:
        """Make one of the block's norms, except that of the convolution module."""
        return nn.LayerNorm(dim)

    def positions(self, x: Tensor) -> Tensor:
        """Compute what the attention needs of the positions of x (B, T', D)."""
        return self.attention.positions(x)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D) to (B, T', D); `positions` are those of the method, padding_mask is (B, T')."""
        return self.through(
            x, lambda x: self.attention(x, positions, padding_mask), lambda x: self.convolution(x, padding_mask)
        )

    def through(self, x: Tensor, attend: Mix, convolve: Mix) -> Tensor:
        """Run the modules in their order; `attend` and `convolve` run those that mix frames."""
        x = self.add_feed_forward(x, self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(attend(self.norm_attention(x)))
        x = self.add_convolution(x, convolve(self.norm_convolution(x)))
        x = self.add_feed_forward(x, self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x)

    def add_feed_forward(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add a feed-forward module's output to its input."""
        return x + 0.5 * self.dropout(branch)

    def add_convolution(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the convolution module's output to its input."""
        return x + self.dropout(branch)
