"""The Conformer encoder."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from asr.encoder.attention import RelativeAttention, relative_positions
from asr.encoder.convolution import ConvolutionModule
from asr.errors import InputError
from asr.lengths import padding_mask


class Conformer(nn.Module):
    """Convolutional subsampling and a stack of Conformer blocks.

    *Source*: Gulati et al. 2020, arXiv:2005.08100.

    *Differs from the paper*: odd kernels, so that the convolution is centred.

    Args:
        input_dim: F.
        dim: D.
        num_layers: blocks.
        num_heads: attention heads; must divide D.
        feed_forward_dim: inner dimension of the feed-forward modules.
        kernel_size: of the depthwise convolution, in frames of T'; odd.
        dropout: of each residual branch, of the feed-forward activation and of the attention weights.
        subsampling: makes the front-end, given F and D.
        norm: makes the norm of the convolution module, given D.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: int,
        num_layers: int,
        num_heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        dropout: float,
        subsampling: Callable[[int, int], Any],
        norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        if dim % num_heads or dim % 2:
            must = "encoder.dim must be even and a multiple of encoder.num_heads"
            raise InputError(f"{must}; got dim={dim}, num_heads={num_heads}.")
        if kernel_size % 2 == 0:
            raise InputError(f"encoder.kernel_size must be odd, so that it is centred; got {kernel_size}.")
        self.output_dim = dim
        self.subsampling = subsampling(input_dim, dim)
        self.stride: int = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.blocks = nn.ModuleList(
            ConformerBlock(dim, num_heads, feed_forward_dim, kernel_size, dropout, norm) for _ in range(num_layers)
        )

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        positions = relative_positions(x.shape[1], x.shape[2], x.device).to(x.dtype)
        for block in self.blocks:
            x = block(x, positions, padding)
        return x, lengths


class ConformerBlock(nn.Module):
    """FF/2 + MHSA + convolution + FF/2, pre-norm residuals, and a last LayerNorm."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        dropout: float,
        norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(dim)
        self.feed_forward1 = FeedForward(dim, feed_forward_dim, dropout)
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = RelativeAttention(dim, num_heads, dropout)
        self.norm_convolution = nn.LayerNorm(dim)
        self.convolution = ConvolutionModule(dim, kernel_size, norm)
        self.norm_feed_forward2 = nn.LayerNorm(dim)
        self.feed_forward2 = FeedForward(dim, feed_forward_dim, dropout)
        self.norm_output = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """(B, T', D), (2T' - 1, D), (B, T') to (B, T', D)."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), positions, padding_mask))
        x = x + self.dropout(self.convolution(self.norm_convolution(x), padding_mask))
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x)


class FeedForward(nn.Module):
    """Linear, Swish, dropout, linear."""

    def __init__(self, dim: int, feed_forward_dim: int, dropout: float) -> None:
        super().__init__()
        self.linear1 = nn.Linear(dim, feed_forward_dim)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(feed_forward_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T', D) to (B, T', D)."""
        return self.linear2(self.dropout(F.silu(self.linear1(x))))
