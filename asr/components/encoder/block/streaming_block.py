"""The block of a streaming Conformer."""

from typing import Self

from torch import Tensor

from asr.components.encoder.block.conformer_block import ConformerBlock
from asr.components.encoder.earlier_frames import EarlierResults
from asr.errors import InputError
from asr.interfaces import Attention, Convolution, StreamingAttention, StreamingConvolution


class StreamingBlock(ConformerBlock):
    """A `ConformerBlock` that uses results for earlier frames."""

    attention: StreamingAttention
    convolution: StreamingConvolution

    @property
    def streaming(self) -> Self:  # type: ignore[override]  # None in ConformerBlock
        """Return this object, after checking that its parts use results of earlier chunks and need no later frames.

        Raises:
            InputError: a part does not, or needs the whole utterance.
        """
        parts: dict[str, tuple[Attention | Convolution, str]] = {
            "attention": (self.attention, "relative_attention or local_attention"),
            "convolution": (self.convolution, "depthwise_convolution or causal_convolution"),
        }
        for name, (part, choices) in parts.items():
            if part.streaming is None:
                must = f"encoder.block.{name} must be {choices} in a streaming_block, to continue from chunk to chunk"
                raise InputError(f"{must}; {type(part).__name__} cannot.")
        norm = self.convolution.norm
        if not norm.framewise:
            must = "encoder.block.norm must be masked_batch_norm or layer_norm in a streaming_block"
            raise InputError(f"{must}, to need no later frames; {type(norm).__name__} needs the whole utterance.")
        return self

    def forward(  # type: ignore[override]  # has more arguments than in ConformerBlock
        self, x: Tensor, positions: Tensor, hidden: Tensor, padding_mask: Tensor, past: EarlierResults
    ) -> tuple[Tensor, EarlierResults | None]:
        """Map x (B, Q, D) to (B, Q, D); also return `past` extended by the new frames, or None for `Chunks`."""
        results: list[Tensor] = []  # of earlier and new frames: keys and values, and inputs of the convolution

        def attend(x: Tensor) -> Tensor:
            out, keys_values = self.attention.extend(x, past.keys_values_before, positions, hidden)
            results.append(keys_values)
            return out

        def convolve(x: Tensor) -> Tensor:
            out, frames = self.convolution.extend(x, past.frames_before, padding_mask)
            results.append(frames)
            return out

        x = self.through(x, attend, convolve)
        return x, past.after(*results)
