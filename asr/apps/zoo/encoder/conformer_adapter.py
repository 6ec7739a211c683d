"""A Conformer with convolutional adapter blocks, as in w2v-BERT 2.0."""

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.attention import attend
from asr.base.kernels.dropout import Dropout
from asr.base.kernels.strided_conv import KERNEL_SIZE, PADDING, STRIDE, halved
from asr.base.settings.rule import Dim, Layers
from asr.components.encoder.block.conformer_block import ConformerBlock
from asr.components.encoder.conformer import Conformer, LastNorm
from asr.components.encoder.stack import FeedForward, run_blocks
from asr.interfaces import NO_TAPS, Block, ConformerPart, Encoded, NamedBlocks, Subsampling, Taps
from asr.lengths import Lengths, padding_mask


class ConformerAdapter(Conformer):
    """A `Conformer`, and blocks each of which halves the frame rate.

    The weights of the Conformer have the names of `Conformer`, so its models initialise this one.

    *Source*: Barrault et al. 2023, arXiv:2308.11596, section 4.2.1 (M-adaptor); transformers' Wav2Vec2BertAdapter.

    *Differs from the source*: the convolutions read zeros after the end of an utterance, so that an utterance has the
    same output alone and in a batch.

    Args, in addition to those of `Conformer`:
        num_adapter_layers: number of adapter blocks, with the heads, inner dimension and dropout of the others.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        last_norm: LastNorm,
        num_adapter_layers: Layers,
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], ConformerPart],
    ) -> None:
        super().__init__(
            input_dim, dim=dim, num_layers=num_layers, last_norm=last_norm, subsampling=subsampling, block=block
        )
        like = cast(ConformerBlock, self.blocks[0])
        heads, inner, dropout = like.num_heads, like.feed_forward_dim, like.dropout.p
        self.adapter = nn.ModuleList(
            AdapterBlock(dim, heads, dropout, FeedForward(dim, inner, dropout, nn.ReLU(), bias=True))
            for _ in range(num_adapter_layers)
        )
        self.stride *= STRIDE**num_adapter_layers

    def named_blocks(self) -> NamedBlocks:
        """List the blocks of the Conformer and of the adapter in order of use."""
        stride = self.subsampling.stride
        return [
            *super().named_blocks(),
            *(
                (f"adapter.{number}", Block(block, self.output_dim, stride * STRIDE ** (number + 1)))
                for number, block in enumerate(self.adapter)
            ),
        ]

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        encoded = super().forward(features, feature_lengths, taps)
        x, lengths, blocks = encoded.out, encoded.lengths, dict(encoded.blocks)
        for index, block in enumerate(self.adapter, len(self.blocks)):
            x, lengths, tapped = _halve(block, x, lengths, taps, index)
            blocks |= tapped
        return Encoded(x, lengths, blocks)

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        lengths = self.subsampling.output_lengths(feature_lengths)
        for _ in self.adapter:
            lengths = halved(lengths)
        return lengths


def _halve(
    block: nn.Module, x: Tensor, lengths: Tensor, taps: Taps, index: int
) -> tuple[Tensor, Tensor, dict[int, Encoded]]:
    """Run an adapter block; return its output, the lengths, and the output again if it is tapped."""
    before, lengths = padding_mask(lengths, x.shape[1]), halved(lengths)
    after = padding_mask(lengths, halved(x.shape[1]))
    x, tapped = run_blocks([block], x, after, taps, lambda block, x: block(x, before, after), index)
    return x, lengths, {index: Encoded(out, lengths, {}) for index, out in tapped.items()}


class AdapterBlock(nn.Module):
    """Self-attention and feed-forward; convolutions of stride 2 come before the attention and in its residual."""

    def __init__(self, dim: int, num_heads: int, dropout: float, feed_forward: nn.Module) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_residual = nn.LayerNorm(dim)
        self.conv_residual = nn.Conv1d(dim, 2 * dim, KERNEL_SIZE, STRIDE, PADDING)
        self.norm_attention = nn.LayerNorm(dim)
        self.conv_attention = nn.Conv1d(dim, 2 * dim, KERNEL_SIZE, STRIDE, PADDING)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.stacked_matrices = {"qkv": 3}  # queries, keys and values
        self.output = nn.Linear(dim, dim)
        self.norm_feed_forward = nn.LayerNorm(dim)
        self.feed_forward = feed_forward
        self.attention_dropout = Dropout(dropout)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T', D), where T' is T / 2, rounded up.

        Args:
            x: (B, T, D).
            before: padding mask of x, (B, T).
            after: padding mask of the output, (B, T').
        """
        residual = _pooled(self.conv_residual, self.norm_residual(x), before)
        x = _pooled(self.conv_attention, self.norm_attention(x), before)
        x = residual + self.dropout(self._attend(x, after))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))

    def _attend(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = attend(query, key, value, padding_mask[:, None], self.attention_dropout)
        return self.output(out.transpose(1, 2).flatten(2))


def _pooled(conv: nn.Module, x: Tensor, padding_mask: Tensor) -> Tensor:
    """Map (B, T, D) to (B, T', D) by a convolution and a GLU; the convolution reads zeros at padded frames."""
    x = x.masked_fill(padding_mask[:, :, None], 0.0)
    return F.glu(conv(x.transpose(1, 2)), dim=1).transpose(1, 2).contiguous()  # as linear layers read it
