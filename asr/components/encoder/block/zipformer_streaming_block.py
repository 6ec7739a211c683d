"""The block of a streaming Zipformer."""

from functools import partial
from typing import Self

import torch
from torch import Tensor

from asr.components.encoder.block.convolution.in_chunks import ChunkConvolution
from asr.components.encoder.block.zipformer_block import ZipformerBlock, no_norm, small_output
from asr.components.encoder.zipformer_parts import ChunkView, SwooshR
from asr.interfaces import State


class ZipformerStreamingBlock(ZipformerBlock):
    """A `ZipformerBlock` that uses results for earlier frames, and whose convolutions are `ChunkConvolution`s."""

    convolution1: ChunkConvolution
    convolution2: ChunkConvolution

    @property
    def streaming(self) -> Self:  # type: ignore[override]  # None in ZipformerBlock
        """Return this object, which can continue from chunk to chunk."""
        return self

    def make_convolution(self, dim: int, kernel_size: int) -> ChunkConvolution:
        """Make a convolution module."""
        return small_output(ChunkConvolution(dim, no_norm, SwooshR, kernel_size=kernel_size, bias=True))

    def initial_state(self, batch: int, earlier: int) -> State:
        """Return the results for `earlier` frames before the first frame, zeros, and for the convolutions."""
        keys, values, gated = self.weights.sizes[0], self.attention1.value.out_features, self.dim * 3 // 4
        sizes = {"keys": keys, "gated": gated, "values1": values, "values2": values}
        zeros, before = self.norm.bias.new_zeros, self.convolution1.num_before
        state = {name: zeros(batch, earlier, size) for name, size in sizes.items()}
        return state | {name: zeros(batch, before, self.dim) for name in ("frames1", "frames2")}

    def forward(  # type: ignore[override]  # has other arguments than in ZipformerBlock
        self, x: Tensor, view: ChunkView, past: State
    ) -> tuple[Tensor, State]:
        """Map x (B, Q, D) to (B, Q, D); also return the state after x, for as many earlier frames as `past`."""
        after: State = {}

        def joined(name: str, new: Tensor) -> Tensor:
            """Append results for the new frames to those for the earlier ones."""
            frames = torch.cat([past[name], new], dim=1)
            after[name] = frames.narrow(1, new.shape[1], past[name].shape[1])
            return frames

        def convolve(convolution: ChunkConvolution, x: Tensor, name: str) -> Tensor:
            return convolution.in_chunks(x, partial(joined, name), view.chunk, view.ends, view.padding)

        query, key, by_distance = self.weights.project(x)
        weights = self.weights.weigh(query, joined("keys", key), by_distance, view.positions, view.hidden)
        given, x = x, x + self.feed_forward1(x)
        values, output_gate = self.nonlinear_attention.project(x)
        x = x + self.nonlinear_attention.mix(joined("gated", values), output_gate, weights[:, :1])
        x = x + self.attention1.mix(joined("values1", self.attention1.value(x)), weights)
        x = x + convolve(self.convolution1, x, "frames1")
        x = x + self.feed_forward2(x)
        x = self.bypass_middle(given, x)
        x = x + self.attention2.mix(joined("values2", self.attention2.value(x)), weights)
        x = x + convolve(self.convolution2, x, "frames2")
        x = x + self.feed_forward3(x)
        return self.bypass(given, self.norm(x)), after
