"""The Transformer encoder."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from asr.base.kernels.attention import attend
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Dim, FeedForwardFactor, Heads, Layers, Probability
from asr.components.encoder.stack import check_heads, numbered_blocks, run_blocks, with_blocks
from asr.interfaces import NO_TAPS, ActivationMaker, Encoded, NamedBlocks, Residual, Subsampling, Taps
from asr.lengths import padding_mask


class Transformer(nn.Module):
    """Convolutional subsampling, sinusoidal positions, and a stack of Transformer blocks.

    *Source*: Vaswani et al. 2017, arXiv:1706.03762.

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward sub-layer, as a multiple of D.
        dropout: dropout of the input, of each residual branch, of the feed-forward activation and of the attention
            weights.
        subsampling: makes the front-end, given F and D.
        activation: makes the activation of each feed-forward sub-layer.
        residual: makes the residual connections, pre-norm or post-norm.
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
        dropout: Probability,
        subsampling: Callable[[int, int], Subsampling],
        activation: ActivationMaker,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        feed_forward_dim = round(feed_forward_factor * dim)
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, num_heads, feed_forward_dim, dropout, activation=activation(), residual=residual())
            for _ in range(num_layers)
        )
        self.norm_output = residual().last(dim)

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2]).to(x.dtype)
        x = self.dropout(x + positions)
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, padding))
        return with_blocks(self.norm_output(x), lengths, blocks)


class TransformerBlock(nn.Module):
    """Self-attention and feed-forward, each with a LayerNorm and a residual connection."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward_dim: int,
        dropout: float,
        activation: nn.Module,
        residual: Residual,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.output = nn.Linear(dim, dim)
        self.norm_feed_forward = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, feed_forward_dim)
        self.activation = activation
        self.linear2 = nn.Linear(feed_forward_dim, dim)
        self.dropout = Dropout(dropout)
        self.residual = residual

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
