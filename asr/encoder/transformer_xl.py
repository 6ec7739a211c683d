"""The Transformer-XL encoder."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.encoder.conformer import FeedForward
from asr.encoder.stack import check_heads, run_blocks
from asr.interfaces import NO_TAPS, ActivationMaker, Encoded, Residual, Taps
from asr.kernels.choice import wants_plain
from asr.kernels.dropout import Dropout
from asr.kernels.positions import sinusoids
from asr.kernels.relative_attention import Projections, attend
from asr.lengths import padding_mask
from asr.settings.rule import Dim, FeedForwardFactor, Heads, Layers, Probability, whole

Frames = Annotated[int, whole(0, 100_000)]


class TransformerXL(nn.Module):
    """Convolutional subsampling, and a stack of blocks that go through an utterance segment by segment.

    A frame attends to its segment, and to what the block was given of the frames before: its memory, which has no
    gradient. So time and memory are linear in the length, and a frame sees `memory` further back with every layer.

    *Source*: Dai et al. 2019, arXiv:1901.02860, section 3; `u` and `v` are each layer's own.

    *Differs from the paper*: a frame sees all of its segment, as nothing is to be predicted.

    Args:
        input_dim: F.
        dim: D.
        num_layers: blocks.
        num_heads: attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward sub-layer, as a multiple of D.
        dropout: of each residual branch, of the feed-forward activation, of the attention weights, of the input.
        segment: in frames of T'.
        training_memory: while training, at most, in frames of T'.
        memory: otherwise.
        subsampling: makes the front-end, given F and D.
        activation: makes that of each feed-forward sub-layer.
        residual: makes the way in which sub-layers, LayerNorms and their input are joined.
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
        segment: Annotated[int, whole(1, 100_000)],
        training_memory: Frames,
        memory: Frames,
        subsampling: Callable[[int, int], Any],
        activation: ActivationMaker,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.output_dim = dim
        self.segment = segment
        self.training_memory = training_memory
        self.memory = memory
        self.subsampling = subsampling(input_dim, dim)
        self.stride: int = self.subsampling.stride
        self.output_lengths = self.subsampling.output_lengths
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerXLBlock(
                dim,
                MemoryAttention(dim, num_heads, dropout),
                FeedForward(dim, round(feed_forward_factor * dim), dropout, activation(), bias=True),
                dropout,
                residual(),
            )
            for _ in range(num_layers)
        )
        self.norm_output = residual().last(dim)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """(B, T, F), (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        x, no_memory = self.dropout(x), [x[:, :0]] * len(self.blocks)
        if wants_plain():  # a program for any number of segments
            x, _, blocks = self.step(x, padding, self._hidden(padding), no_memory, taps)
            return Encoded(self.norm_output(x), lengths, blocks)
        outs, memories, tapped = [], no_memory, []
        for part, part_padding in zip(x.split(self.segment, dim=1), padding.split(self.segment, dim=1), strict=True):
            out, given, blocks = self.step(part, part_padding, part_padding[:, None], memories, taps)
            memories = [self.remember(memory, frames) for memory, frames in zip(memories, given, strict=True)]
            outs.append(out)
            tapped.append(blocks)
        joined = {index: torch.cat([blocks[index] for blocks in tapped], dim=1) for index in tapped[0]}
        return Encoded(self.norm_output(torch.cat(outs, dim=1)), lengths, joined)

    def step(
        self, x: Tensor, padding: Tensor, hidden: Tensor, memories: list[Tensor], taps: Taps
    ) -> tuple[Tensor, list[Tensor], dict[int, Tensor]]:
        """Go through the blocks with a segment.

        Args:
            x: (B, Q, D).
            padding: (B, Q).
            hidden: True where a frame of the segment must not be seen, (B, Q or 1, Q).
            memories: what each block was given of the M frames before, (B, M, D).
            taps: by number of the block.

        Returns:
            (B, Q, D), what each block was given, (B, Q, D), and what tapped blocks gave.
        """
        frames, remembered = x.shape[1], memories[0].shape[1]
        distances = torch.arange(remembered + frames - 1, -frames, -1, device=x.device)
        positions = sinusoids(distances, x.shape[2]).to(x.dtype)  # (2 Q + M - 1, D)
        hidden = torch.cat([hidden.new_zeros(*hidden.shape[:2], remembered), hidden], dim=2)  # (B, Q or 1, M + Q)
        given: list[Tensor] = []
        memory_of_next = iter(memories)

        def call(block: nn.Module, x: Tensor) -> Tensor:
            given.append(x)
            return block(x, next(memory_of_next), positions, hidden)

        x, blocks = run_blocks(self.blocks, x, padding, taps, call)
        return x, given, blocks

    def remember(self, memory: Tensor, given: Tensor) -> Tensor:
        """Compute a block's next memory of the last one and of what the block was given, (B, M, D), (B, Q, D)."""
        frames = torch.cat([memory, given.detach()], dim=1)
        return frames[:, max(0, frames.shape[1] - self._longest_memory) :]

    @property
    def _longest_memory(self) -> int:
        return self.training_memory if self.training else self.memory

    def _hidden(self, padding: Tensor) -> Tensor:
        """What must not be seen in one pass over all segments, (B, T', T')."""
        frame = torch.arange(padding.shape[1], device=padding.device)
        start = (frame // self.segment * self.segment)[:, None]  # of each query's segment
        return padding[:, None] | (frame >= start + self.segment) | (frame < start - self._longest_memory)


class TransformerXLBlock(nn.Module):
    """Self-attention with a memory, and feed-forward, each with a LayerNorm and joined with its input."""

    def __init__(
        self, dim: int, attention: nn.Module, feed_forward: nn.Module, dropout: float, residual: Residual
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention
        self.norm_feed_forward = nn.LayerNorm(dim)
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """(B, Q, D), (B, M, D), what `MemoryAttention` takes, to (B, Q, D)."""
        inner, memory = (self.residual.enter(frames, self.norm_attention) for frames in (x, memory))
        branch = self.attention(inner, memory, positions, hidden)
        x = self.residual.leave(x, self.dropout(branch), self.norm_attention)
        branch = self.feed_forward(self.residual.enter(x, self.norm_feed_forward))
        return self.residual.leave(x, self.dropout(branch), self.norm_feed_forward)


class MemoryAttention(nn.Module):
    """`RelativeAttention` to a memory, too: arXiv:1901.02860, section 3.3."""

    reads_weights_of = ("qkv",)  # which an adapter of that layer would not be part of

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = Dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.position = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.v = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Attend from a segment to its memory and itself.

        Args:
            x: (B, Q, D).
            memory: (B, M, D).
            positions: encodings of the distances Q + M - 1 .. -(Q - 1), (2 Q + M - 1, D).
            hidden: True where a key must not be seen, (B, Q or 1, M + Q).

        Returns:
            (B, Q, D); finite at padded frames.
        """
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        dim = x.shape[2]
        remembered = linear(memory, self.qkv.weight[dim:], self.qkv.bias[dim:]).chunk(2, dim=-1)
        query = self._heads(query)  # (B, H, Q, D / H)
        key, value = (
            self._heads(torch.cat(parts, dim=1)) for parts in zip(remembered, (key, value), strict=True)
        )  # (B, H, M + Q, D / H)
        distance = self._heads(self.position(positions))  # (H, 2 Q + M - 1, D / H)
        out = attend(Projections(query + self.u, query + self.v, key, value, distance), hidden, self.dropout)
        return self.output(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
