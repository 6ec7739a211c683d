"""The streaming Conformer encoder."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.positions import sinusoids
from asr.base.settings.rule import Bias, Dim, FeedForwardFactor, Heads, Layers, Probability, list_of, or_null, whole
from asr.components.encoder.conformer import ConformerBlock, FeedForward
from asr.components.encoder.stack import check_heads, numbered_blocks, run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import (
    NO_TAPS,
    ActivationMaker,
    Attention,
    Convolution,
    Encoded,
    NamedBlocks,
    NormMaker,
    State,
    StreamingAttention,
    StreamingConvolution,
    StreamingSubsampling,
    Subsampling,
    Taps,
)
from asr.lengths import padding_mask

Frames = whole(0, 100_000)
# A longer right context would delay words too much for streaming. The frames of the right context are computed
# again in the next step.
RightFrames = whole(0, 1_000)
ChunkFrames = or_null(whole(1, 100_000))


class Kept(NamedTuple):
    """State of a block between the steps of a stream: the results for earlier frames.

    Args:
        keys_values: keys and values of the attention, (B, M, 2D).
        frames: inputs of the convolution, (B, num_kept, D).
    """

    keys_values: Tensor
    frames: Tensor

    def keys_values_before(self, new: Tensor) -> Tensor:
        """Return the keys and values of the earlier frames, (B, M, 2D); `new` is (B, Q, 2D)."""
        return self.keys_values

    def frames_before(self, new: Tensor) -> Tensor:
        """Return the convolution's inputs at the earlier frames, (B, num_kept, D); `new` is (B, Q, D)."""
        return self.frames

    def after(self, keys_values: Tensor, frames: Tensor) -> "Kept":
        """Return a state with the results for earlier and new frames, (B, M + Q, 2D) and (B, num_kept + Q, D)."""
        return Kept(keys_values, frames)


class Chunks(NamedTuple):
    """All n chunks of each utterance as rows of one batch; the earlier frames of a chunk come from the rows above it.

    Args:
        batch: B, number of utterances.
        frames: c, number of frames of a chunk. The other frames of a row are right context, which the next row repeats.
        left: M, number of frames before a chunk to which the chunk attends.
        num_before: number of frames before a chunk that the convolution needs, its `num_kept`.
    """

    batch: int
    frames: int
    left: int
    num_before: int

    def cut(self, x: Tensor, before: int, after: int) -> Tensor:
        """Cut from x (B, T', D), for each chunk, `before` frames before its start and `after` frames from its start on.

        Frames beyond the ends of x are zeros.

        Shapes: returns (B n, before + after, D).
        """
        begins = torch.arange((x.shape[1] + self.frames - 1) // self.frames, device=x.device) * self.frames
        index = begins[:, None] + torch.arange(before + after, device=x.device)  # (n, before + after)
        padded = F.pad(x, (0, 0, before, after))
        return padded.index_select(1, index.flatten()).unflatten(1, index.shape).flatten(0, 1)

    def joined(self, x: Tensor) -> Tensor:
        """Concatenate the chunks of each utterance, (B n, Q, D), without their right context, to (B, n c, D)."""
        return x[:, : self.frames].reshape(self.batch, -1, x.shape[2])

    def keys_values_before(self, new: Tensor) -> Tensor:
        """Return the keys and values of the earlier frames of each chunk, (B n, M, 2D); `new` is (B n, Q, 2D)."""
        return self.cut(self.joined(new), self.left, 0)

    def frames_before(self, new: Tensor) -> Tensor:
        """Return the convolution's inputs before each chunk, (B n, num_before, D); `new` is (B n, Q, D)."""
        return self.cut(self.joined(new), self.num_before, 0)

    def after(self, keys_values: Tensor, frames: Tensor) -> None:
        """Return None: all chunks are in the batch, so no later chunk needs a state."""


class ConformerStreaming(nn.Module):
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

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        num_heads: number of attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: whether the linear layers of the feed-forward modules have a bias.
        dropout: dropout, as in `Conformer`.
        chunk_frames: encoder frames of a chunk outside training; None: the chunk is the whole utterance.
        left_frames: left context in encoder frames, outside training.
        right_frames: right context in encoder frames, outside training; it adds to the latency.
        training_chunk_frames: chunk sizes in training; each batch draws one of them, with equal probabilities.
        training_left_frames: left contexts in training; each batch draws one of them.
        training_right_frames: right contexts in training; each batch draws one of them.
        subsampling: makes the front-end, given F and D.
        attention: makes the self-attention of a block, given D, num_heads and dropout.
        convolution: makes the convolution module of a block, given D, the norm and the activation.
        norm: makes the norm of the convolution module, given D.
        activation: makes the activation of each feed-forward and convolution module.

    Raises:
        InputError: a setting is invalid, or a part of a block needs later frames.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        num_heads: Heads,
        feed_forward_factor: FeedForwardFactor,
        feed_forward_bias: Bias,
        dropout: Probability,
        chunk_frames: Annotated[int | None, ChunkFrames],
        left_frames: Annotated[int, Frames],
        right_frames: Annotated[int, RightFrames],
        training_chunk_frames: Annotated[list[int | None], list_of(ChunkFrames, "such as [4, 16, null]", least=1)],
        training_left_frames: Annotated[list[int], list_of(Frames, "such as [64, 128]", least=1)],
        training_right_frames: Annotated[list[int], list_of(RightFrames, "such as [0, 8]", least=1)],
        subsampling: Callable[[int, int], Subsampling],
        attention: Callable[[int, int, float], Attention],
        convolution: Callable[[int, NormMaker, ActivationMaker], Convolution],
        norm: NormMaker,
        activation: ActivationMaker,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        feed_forward_dim = round(feed_forward_factor * dim)
        self.output_dim = dim
        self.chunk_frames = chunk_frames
        self.left_frames = left_frames
        self.right_frames = right_frames
        self.training_chunk_frames = training_chunk_frames
        self.training_left_frames = training_left_frames
        self.training_right_frames = training_right_frames
        self.subsampling = _streaming(subsampling(input_dim, dim))
        self.stride = self.subsampling.stride
        self.first_frames = self.subsampling.first_frames
        self.output_lengths = self.subsampling.output_lengths
        self.blocks = nn.ModuleList(
            ConformerStreamingBlock(
                dim,
                FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                attention(dim, num_heads, dropout),
                convolution(dim, norm, activation),
                FeedForward(dim, feed_forward_dim, dropout, activation(), feed_forward_bias),
                dropout,
            )
            for _ in range(num_layers)
        )
        # Without right context, a chunk is the look-ahead; look-aheads that the training did not have lose accuracy.
        is_any = None in training_chunk_frames or training_right_frames != [0]
        self.chunk_choices = () if is_any else tuple(size for size in training_chunk_frames if size is not None)
        self._num_kept = _check_parts(cast(ConformerStreamingBlock, self.blocks[0]))

    def named_blocks(self) -> NamedBlocks:
        """List the blocks in order of use."""
        return numbered_blocks("blocks", self.blocks, self.output_dim, self.stride)

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
        return with_blocks(chunks.joined(rows).index_select(1, frame), lengths, blocks)

    @property
    def streaming(self) -> Self:
        """Return this object, which can encode an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Return the state of new streams. Its keys are module names and `seen` (number of valid cached frames).

        Args:
            batch: number of streams.
            left_frames: left context in encoder frames; None: the encoder's setting.
        """
        left, weight = self.left_frames if left_frames is None else left_frames, next(self.parameters())
        state = _named("subsampling", self.subsampling.initial_state(batch))
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
        before, left = _part(state, "subsampling"), state["blocks.0.keys_values"].shape[1]
        x, seen_lengths, subsampling_state = self.subsampling.step(features, feature_lengths, before, ahead)
        frames = x.shape[1] - ahead // self.stride
        lengths = seen_lengths.clamp(max=frames)
        absent = padding_mask(state["seen"], left).flip(1)  # (B, M), valid frames last
        hidden = torch.cat([absent, padding_mask(seen_lengths, x.shape[1])], dim=1)[:, None]  # (B, 1, M + Q)
        pasts = [Kept(**_part(state, f"blocks.{number}")) for number in range(len(self.blocks))]
        x, blocks, afters = self._through(x, hidden, pasts, taps)
        new = _named("subsampling", subsampling_state)
        for number, (keys_values, inputs) in enumerate(cast(list[Kept], afters)):
            new[f"blocks.{number}.keys_values"] = keys_values.narrow(1, frames, left)
            new[f"blocks.{number}.frames"] = inputs.narrow(1, frames, pasts[number].frames.shape[1])
        new["seen"] = (state["seen"] + lengths).clamp(max=left)
        blocks = {index: block.narrow(1, 0, frames) for index, block in blocks.items()}
        return with_blocks(x.narrow(1, 0, frames), lengths, blocks), new

    def _through(
        self, x: Tensor, hidden: Tensor, pasts: Iterable[Kept | Chunks], taps: Taps
    ) -> tuple[Tensor, dict[int, Tensor], list[Kept | None]]:
        """Run the blocks over x (B, Q, D), given the results for M earlier frames.

        Shapes: hidden (B, 1, M + Q), True where an earlier or new frame is masked.
        """
        padding = hidden[:, 0, hidden.shape[2] - x.shape[1] :]
        distances = torch.arange(hidden.shape[2] - 1, -x.shape[1], -1, device=x.device)
        positions = sinusoids(distances, x.shape[2]).to(x.dtype)  # (2 Q + M - 1, D)
        past_of_next = iter(pasts)
        afters: list[Kept | None] = []

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
        return _one_of(chunks), _one_of(lefts), _one_of(rights)


class ConformerStreamingBlock(ConformerBlock):
    """A Conformer block that uses results for earlier frames."""

    attention: StreamingAttention
    convolution: StreamingConvolution

    def forward(  # type: ignore[override]  # has more arguments than in ConformerBlock
        self, x: Tensor, positions: Tensor, hidden: Tensor, padding_mask: Tensor, past: Kept | Chunks
    ) -> tuple[Tensor, Kept | None]:
        """Map x (B, Q, D) to (B, Q, D); also return `past` extended by the new frames, or None for `Chunks`."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        inner = self.norm_attention(x)
        branch, keys_values = self.attention.extend(inner, past.keys_values_before, positions, hidden)
        x = x + self.dropout(branch)
        branch, frames = self.convolution.extend(self.norm_convolution(x), past.frames_before, padding_mask)
        x = x + self.dropout(branch)
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x), past.after(keys_values, frames)


def _check_parts(block: ConformerStreamingBlock) -> int:
    """Check that the parts of a block can use results of earlier chunks and need no later frames.

    Returns:
        The number of frames before a chunk that the convolution needs.
    """
    parts: dict[str, tuple[Attention | Convolution, str]] = {
        "attention": (block.attention, "relative_attention or local_attention"),
        "convolution": (block.convolution, "depthwise_convolution or causal_convolution"),
    }
    for name, (part, choices) in parts.items():
        if part.streaming is None:
            must = f"encoder.{name} must be {choices} in conformer_streaming, to continue from chunk to chunk"
            raise InputError(f"{must}; {type(part).__name__} cannot.")
    norm = block.convolution.norm
    if not norm.framewise:
        must = "encoder.norm must be masked_batch_norm or layer_norm in conformer_streaming, to need no later frames"
        raise InputError(f"{must}; {type(norm).__name__} needs the whole utterance.")
    return block.convolution.num_kept


def _streaming(subsampling: Subsampling) -> StreamingSubsampling:
    """Return the subsampling, after checking that it can use results of earlier chunks."""
    if subsampling.streaming is None:
        must = "encoder.subsampling must be able to continue from chunk to chunk in conformer_streaming"
        raise InputError(f"{must}; {type(subsampling).__name__} cannot. Take encoder/subsampling=strided_conv.")
    return subsampling.streaming


def _one_of(choices: Sequence[Any]) -> Any:
    return choices[int(torch.randint(len(choices), ()))]


def _named(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _part(state: State, name: str) -> State:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
