"""The Transformer-XL encoder."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Dim, Layers, whole
from asr.components.encoder.stack import run_blocks, with_blocks
from asr.components.encoder.transformer import Transformer
from asr.interfaces import NO_TAPS, Encoded, Subsampling, Taps
from asr.lengths import padding_mask

Frames = Annotated[int, whole(0, 100_000)]


class TransformerXL(Transformer):
    """Convolutional subsampling, and a stack of blocks that process an utterance segment by segment.

    A frame attends to its segment and to the memory, which consists of the block's inputs at the frames before the
    segment, without gradients. Time and space are therefore linear in the length. Each layer extends the receptive
    field by `memory` earlier frames.

    *Source*: Dai et al. 2019, arXiv:1901.02860, section 3; each layer has its own `u` and `v`.

    *Differs from the paper*: a frame attends to its whole segment, because an encoder does not predict later frames.

    Args, in addition to those of `Transformer`:
        segment: length of a segment in encoder frames.
        training_memory: maximum length of the memory in training, in encoder frames.
        memory: maximum length of the memory outside training, in encoder frames.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        segment: Annotated[int, whole(1, 100_000)],
        training_memory: Frames,
        memory: Frames,
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], Any],
    ) -> None:
        super().__init__(input_dim, dim=dim, num_layers=num_layers, subsampling=subsampling, block=block)
        self.segment, self.training_memory, self.memory = segment, training_memory, memory

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        x, no_memory = self.dropout(x), [x[:, :0]] * len(self.blocks)
        if wants_plain():  # an exported program processes all segments in one pass
            x, _, blocks = self.step(x, padding, self._hidden(padding), no_memory, taps)
            return with_blocks(self.norm_output(x), lengths, blocks)
        outs, memories, tapped = [], no_memory, []
        for part, part_padding in zip(x.split(self.segment, dim=1), padding.split(self.segment, dim=1), strict=True):
            out, given, blocks = self.step(part, part_padding, part_padding[:, None], memories, taps)
            memories = [self.remember(memory, frames) for memory, frames in zip(memories, given, strict=True)]
            outs.append(out)
            tapped.append(blocks)
        joined = {index: torch.cat([blocks[index] for blocks in tapped], dim=1) for index in tapped[0]}
        return with_blocks(self.norm_output(torch.cat(outs, dim=1)), lengths, joined)

    def step(
        self, x: Tensor, padding: Tensor, hidden: Tensor, memories: list[Tensor], taps: Taps
    ) -> tuple[Tensor, list[Tensor], dict[int, Tensor]]:
        """Run the blocks over a segment.

        Args:
            x: input of the first block, (B, Q, D).
            padding: padding mask of the segment, (B, Q).
            hidden: attention mask of the segment, True where a frame is masked, (B, Q or 1, Q).
            memories: for each block, its inputs at the M frames before the segment, (B, M, D).
            taps: taps by block index.

        Returns:
            The output (B, Q, D), the input of each block (B, Q, D), and the outputs of tapped blocks.
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
        """Append a block's inputs, (B, Q, D), to its memory, (B, M, D), and drop the oldest frames."""
        frames = torch.cat([memory, given.detach()], dim=1)
        return frames[:, max(0, frames.shape[1] - self._longest_memory) :]

    @property
    def _longest_memory(self) -> int:
        return self.training_memory if self.training else self.memory

    def _hidden(self, padding: Tensor) -> Tensor:
        """Return the attention mask of a single pass over all segments, (B, T', T'), True where a frame is masked."""
        frame = torch.arange(padding.shape[1], device=padding.device)
        start = (frame // self.segment * self.segment)[:, None]  # start of each query's segment
        return padding[:, None] | (frame >= start + self.segment) | (frame < start - self._longest_memory)
