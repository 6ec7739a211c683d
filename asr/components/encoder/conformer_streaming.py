"""The streaming Conformer encoder."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self, cast

import torch
from torch import Tensor, nn

from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Dim, Layers, list_of, or_null, whole
from asr.components.encoder.conformer import Conformer, LastNorm
from asr.components.encoder.earlier_frames import Chunks, EarlierResults, StreamState, drawn, named_state, state_of
from asr.components.encoder.stack import run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import NO_TAPS, ConformerPart, Encoded, State, StreamingSubsampling, Subsampling, Taps
from asr.lengths import padding_mask

Frames = whole(0, 100_000)
# A longer right context would delay words too much for streaming. The frames of the right context are computed
# again in the next step.
RightFrames = whole(0, 1_000)
ChunkFrames = or_null(whole(1, 100_000))


class ConformerStreaming(Conformer):
    """A Conformer that attends to a chunk and its limited left and right context.

    Encoding chunk by chunk gives the same output as encoding the whole utterance. A frame attends to its chunk, to
    `left_frames` frames before the chunk, whose keys and values are cached, and to `right_frames` frames after the
    chunk, which are its right context. The right context is computed again as part of the next chunk, where its frames
    have more context; this costs time, but words at the end of a chunk are not cut off. The convolution uses the frames
    that its kernel covers. The subsampling of an encoder frame uses no feature frame after its own `stride` frames. The
    output of a chunk therefore does not depend on audio after its right context. The weights have the names and shapes
    of the weights of `Conformer`, so each of the two models can be initialised from the other.

    *Source*: attention to a chunk and to cached earlier frames: Dai et al. 2019, arXiv:1901.02860, section 3.2. Right
    context that is computed again with the next chunk: Shi et al. 2021, arXiv:2010.10759. Random chunk sizes in
    training, so that one model supports many latencies: Zhang et al. 2020, arXiv:2012.05481, section 2.3. A convolution
    that does not use frames after the chunk: Li et al. 2023, arXiv:2304.09325, section 3.2.

    Args, in addition to those of `Conformer`:
        chunk_frames: encoder frames of a chunk outside training; None: the chunk is the whole utterance.
        left_frames: left context in encoder frames, outside training.
        right_frames: right context in encoder frames, outside training; it adds to the latency.
        training_chunk_frames: chunk sizes in training; each batch draws one of them, with equal probabilities.
        training_left_frames: left contexts in training; each batch draws one of them.
        training_right_frames: right contexts in training; each batch draws one of them.

    Raises:
        InputError: a setting is invalid, or a part of a block needs later frames.
    """

    takes_chunks = True
    chunk_multiple = 1
    is_right_fixed = False
    subsampling: StreamingSubsampling

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        last_norm: LastNorm,
        chunk_frames: Annotated[int | None, ChunkFrames],
        left_frames: Annotated[int, Frames],
        right_frames: Annotated[int, RightFrames],
        training_chunk_frames: Annotated[list[int | None], list_of(ChunkFrames, "such as [4, 16, null]", least=1)],
        training_left_frames: Annotated[list[int], list_of(Frames, "such as [64, 128]", least=1)],
        training_right_frames: Annotated[list[int], list_of(RightFrames, "such as [0, 8]", least=1)],
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], ConformerPart],
    ) -> None:
        super().__init__(
            input_dim, dim=dim, num_layers=num_layers, last_norm=last_norm, subsampling=subsampling, block=block
        )
        self.chunk_frames = chunk_frames
        self.left_frames = left_frames
        self.right_frames = right_frames
        self.training_chunk_frames = training_chunk_frames
        self.training_left_frames = training_left_frames
        self.training_right_frames = training_right_frames
        self.first_frames = _streaming(self.subsampling).first_frames
        # Without right context, a chunk is the look-ahead; look-aheads that the training did not have lose accuracy.
        is_any = None in training_chunk_frames or training_right_frames != [0]
        self.chunk_choices = () if is_any else tuple(size for size in training_chunk_frames if size is not None)
        self._num_kept: int = cast(Any, self.first_block).convolution.num_kept

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,); all chunks are rows of one batch."""
        x, lengths = self.subsampling(features, feature_lengths)
        batch, frames = x.shape[:2]
        chunk, left, right = self._drawn() if self.training else self._set()
        if chunk is None:
            chunk, left, right = frames, 0, 0
        sizes = (torch.sym_min(size, frames) for size in (chunk, left, right))  # more would be padding
        chunk, left, right = cast(tuple[int, int, int], tuple(sizes))
        chunks = Chunks(batch, chunk, left, self._num_kept)
        valid = ~padding_mask(lengths, frames)[:, :, None]  # (B, T', 1)
        hidden = ~chunks.cut(valid, left, chunk + right)[:, None, :, 0]  # (B n, 1, left + chunk + right)
        rows, blocks, _ = self._through(chunks.cut(x, 0, chunk + right), hidden, [chunks] * len(self.blocks), taps)
        # Frames are selected by index, because a slice makes torch.export check the memory layout of the result.
        frame = torch.arange(frames, device=x.device)
        blocks = {index: chunks.joined(block).index_select(1, frame) for index, block in blocks.items()}
        return with_blocks(chunks.joined(self.norm_output(rows)).index_select(1, frame), lengths, blocks)

    @property
    def streaming(self) -> Self:  # type: ignore[override]  # None in Conformer
        """Return this object, which can encode an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Return the state of new streams. Its keys are module names and `seen` (number of valid cached frames).

        Args:
            batch: number of streams.
            left_frames: left context in encoder frames; None: the encoder's setting.
        """
        left, weight = self.left_frames if left_frames is None else left_frames, next(self.parameters())
        state = named_state("subsampling", self.subsampling.initial_state(batch))
        for number in range(len(self.blocks)):
            state[f"blocks.{number}.keys_values"] = weight.new_zeros(batch, left, 2 * self.output_dim)
            state[f"blocks.{number}.frames"] = weight.new_zeros(batch, self._num_kept, self.output_dim)
        return state | {"seen": torch.zeros(batch, dtype=torch.int64, device=weight.device)}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]:
        """Encode the next chunk of each stream.

        Args:
            features: features of the chunk and of its right context, (B, T, F). The number of frames of the chunk is a
                multiple of `stride`; the next chunk begins with this right context. The first chunk of a stream begins
                with `stride - first_frames` frames that are not read.
            feature_lengths: number of valid frames of each stream, (B,). It is less than T only for streams that end;
                their frames must be padded to T (`asr.core.recognition.cached_stream.with_room`).
            state: state of the streams; its size determines the left context.
            taps: taps by block index.
            ahead: number of feature frames of right context, a multiple of `stride`; None: `right_frames * stride`.

        Returns:
            The encoder's output for the chunks, and the next state.
        """
        ahead = self.right_frames * self.stride if ahead is None else ahead
        before, left = state_of(state, "subsampling"), state["blocks.0.keys_values"].shape[1]
        x, seen_lengths, subsampling_state = self.subsampling.step(features, feature_lengths, before, ahead)
        frames = x.shape[1] - ahead // self.stride
        lengths = seen_lengths.clamp(max=frames)
        absent = padding_mask(state["seen"], left).flip(1)  # (B, M), valid frames last
        hidden = torch.cat([absent, padding_mask(seen_lengths, x.shape[1])], dim=1)[:, None]  # (B, 1, M + Q)
        pasts = [StreamState(**state_of(state, f"blocks.{number}")) for number in range(len(self.blocks))]
        x, blocks, afters = self._through(x, hidden, pasts, taps)
        new = named_state("subsampling", subsampling_state)
        for number, (keys_values, inputs) in enumerate(cast(list[StreamState], afters)):
            new[f"blocks.{number}.keys_values"] = keys_values.narrow(1, frames, left)
            new[f"blocks.{number}.frames"] = inputs.narrow(1, frames, pasts[number].frames.shape[1])
        new["seen"] = (state["seen"] + lengths).clamp(max=left)
        blocks = {index: block.narrow(1, 0, frames) for index, block in blocks.items()}
        return with_blocks(self.norm_output(x.narrow(1, 0, frames)), lengths, blocks), new

    def _through(
        self, x: Tensor, hidden: Tensor, pasts: Iterable[EarlierResults], taps: Taps
    ) -> tuple[Tensor, dict[int, Tensor], list[StreamState | None]]:
        """Run the blocks over x (B, Q, D), given the results for M earlier frames.

        Shapes: hidden (B, 1, M + Q), True where an earlier or new frame is masked.
        """
        padding = hidden[:, 0, hidden.shape[2] - x.shape[1] :]
        distances = torch.arange(hidden.shape[2] - 1, -x.shape[1], -1, device=x.device)
        positions = sinusoids(distances, x.shape[2]).to(x.dtype)  # (2 Q + M - 1, D)
        past_of_next = iter(pasts)
        afters: list[StreamState | None] = []

        def call(block: nn.Module, x: Tensor) -> Tensor:
            x, after = block(x, positions, hidden, padding, next(past_of_next))
            afters.append(after)
            return x

        x, blocks = run_blocks(self.blocks, x, padding, taps, call)
        return x, blocks, afters

    def _set(self) -> tuple[int | None, int, int]:
        return self.chunk_frames, self.left_frames, self.right_frames

    def _drawn(self) -> tuple[int | None, int, int]:
        """Draw the chunk size and contexts of a training batch from torch's CPU generator, seeded for each batch."""
        chunks, lefts, rights = self.training_chunk_frames, self.training_left_frames, self.training_right_frames
        return drawn(chunks), drawn(lefts), drawn(rights)


def _streaming(subsampling: Subsampling) -> StreamingSubsampling:
    """Return the subsampling, after checking that it can use results of earlier chunks."""
    if subsampling.streaming is None or subsampling.streaming.look_ahead:
        must = "encoder.subsampling must continue from chunk to chunk without later frames in conformer_streaming"
        raise InputError(f"{must}; {type(subsampling).__name__} cannot. Take encoder/subsampling=strided_conv.")
    return subsampling.streaming
