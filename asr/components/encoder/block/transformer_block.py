"""The block of a Transformer."""

from collections.abc import Callable

from torch import Tensor, nn

from asr.base.kernels.attention import attend
from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import FeedForwardFactor, Heads, Probability
from asr.components.encoder.stack import check_heads
from asr.interfaces import ActivationMaker, Residual


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each with a LayerNorm and a residual connection.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

    Args:
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward sub-layer, as a multiple of D.
        dropout: dropout of each residual branch, of the feed-forward activation and of the attention weights.
        activation: makes the activation of the feed-forward sub-layer.
        residual: makes the residual connections, pre-norm or post-norm.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        dropout: Probability,
        activation: ActivationMaker,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(dim)
        self.make_attention(dim, dropout)
        self.norm_feed_forward = nn.LayerNorm(dim)
        self.make_feed_forward(dim, round(feed_forward_factor * dim), dropout, activation())
        self.dropout = Dropout(dropout)
        self.residual = residual()

    def make_attention(self, dim: int, dropout: float) -> None:
        """Make the weights of the self-attention."""
        self.qkv = nn.Linear(dim, 3 * dim)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.output = nn.Linear(dim, dim)

    def make_feed_forward(self, dim: int, feed_forward_dim: int, dropout: float, activation: nn.Module) -> None:
        """Make the weights of the feed-forward sub-layer."""
        self.linear1 = nn.Linear(dim, feed_forward_dim)
        self.activation = activation
        self.linear2 = nn.Linear(feed_forward_dim, dim)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T', D) with padding_mask (B, T') to (B, T', D)."""
        branch = self._attention(self.residual.enter(x, self.norm_attention), padding_mask)
        x = self.residual.leave(x, self.dropout(branch), self.norm_attention)
        hidden = self.dropout(self.activation(self.linear1(self.residual.enter(x, self.norm_feed_forward))))
        return self.residual.leave(x, self.dropout(self.linear2(hidden)), self.norm_feed_forward)

    def _attention(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T', D / H)
        out = attend(query, key, value, padding_mask[:, None], self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))
