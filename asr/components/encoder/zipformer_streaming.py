"""The streaming Zipformer encoder."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import list_of, or_null, whole
from asr.components.encoder.earlier_frames import drawn, named_state, state_of
from asr.components.encoder.zipformer import OUTPUT_STRIDE, Block, Dims, KernelSizes, Numbers, Stack, Zipformer
from asr.components.encoder.zipformer_parts import ChunkView
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, NamedBlocks, State, StreamingSubsampling, Subsampling, Taps
from asr.lengths import padding_mask

Frames = whole(0, 100_000)
ChunkFrames = or_null(whole(1, 1_000))  # convolutions pad an utterance to whole chunks


class ZipformerStreaming(Zipformer):
    """A Zipformer whose blocks see a chunk and a limited left context.

    Encoding chunk by chunk gives the same output as encoding the whole utterance. A frame attends to its chunk and to
    `left_frames` frames before the chunk, whose keys and values are cached; a stack with a stride takes whole frames
    of it. The convolutions use no frame after the chunk (`ChunkConvolution`). The front-end alone sees later feature
    frames: `right_frames` encoder frames of right context, a constant that follows from its kernels. Each chunk begins
    with a frame of every stack, so its size is a multiple of `chunk_multiple`. The weights are those of a `Zipformer`
    but for the depthwise convolutions.

    *Source*: Yao et al. 2023, arXiv:2310.11230, and icefall's Zipformer (`causal`), which counts chunks and left
    contexts in frames of the front-end. An encoder frame is two of them: icefall's chunk of 16 and left context of 128
    are `chunk_frames=8` and `left_frames=64`.

    Args, in addition to those of `Zipformer`:
        chunk_frames: encoder frames of a chunk outside training; None: the chunk is the whole utterance.
        left_frames: left context in encoder frames, outside training.
        training_chunk_frames: chunk sizes in training; each batch draws one of them, with equal probabilities. They are
            the sizes that a stream may have.
        training_left_frames: left contexts in training; each batch draws one of them.

    Raises:
        InputError: a setting is invalid, or a part cannot continue from chunk to chunk.
    """

    is_right_fixed = True
    subsampling: StreamingSubsampling

    def __init__(
        self,
        input_dim: int,
        *,
        dims: Dims,
        layers: Numbers,
        strides: Numbers,
        heads: Numbers,
        feed_forward_dims: Dims,
        kernel_sizes: KernelSizes,
        chunk_frames: Annotated[int | None, ChunkFrames],
        left_frames: Annotated[int, Frames],
        training_chunk_frames: Annotated[list[int | None], list_of(ChunkFrames, "such as [8, 16, null]", least=1)],
        training_left_frames: Annotated[list[int], list_of(Frames, "such as [64, 128]", least=1)],
        subsampling: Callable[[int, int], Subsampling],
        block: Block,
    ) -> None:
        super().__init__(
            input_dim,
            dims=dims,
            layers=layers,
            strides=strides,
            heads=heads,
            feed_forward_dims=feed_forward_dims,
            kernel_sizes=kernel_sizes,
            subsampling=subsampling,
            block=block,
        )
        self.chunk_frames, self.left_frames = chunk_frames, left_frames
        self.training_chunk_frames, self.training_left_frames = training_chunk_frames, training_left_frames
        self.chunk_choices = tuple(size for size in training_chunk_frames if size is not None)
        self.chunk_multiple = math.lcm(OUTPUT_STRIDE, *strides) // OUTPUT_STRIDE
        sizes = {"chunk_frames": [chunk_frames], "training_chunk_frames": training_chunk_frames}
        _check_chunks(sizes, self.chunk_multiple, strides)
        front_end = _streaming(self.subsampling)
        # Feature frames that the first encoder frame needs.
        needed = front_end.first_frames + (OUTPUT_STRIDE - 1) * front_end.stride + front_end.look_ahead
        self.right_frames = (needed - 1) // self.stride
        self.first_frames = needed - self.right_frames * self.stride
        _check_blocks(self.named_blocks())

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        chunk, left = self._drawn() if self.training else (self.chunk_frames, self.left_frames)

        def prepare(stack: Stack, x: Tensor, lengths: Tensor, padding: Tensor) -> Callable[..., Tensor]:
            frames = x.shape[1]
            size = frames if chunk is None else _in_stack(chunk, stack)
            frame = torch.arange(frames, device=x.device)
            begin = (frame - frame % size)[:, None]  # first frame of each frame's chunk
            beyond = (frame >= begin + size) | (frame < begin - _in_stack(left, stack))  # (T, T)
            first = _first(stack)
            view = ChunkView(first.positions(x), beyond | padding[:, None], padding, size, lengths.clamp(max=size))
            past = first.initial_state(x.shape[0], 0)
            return lambda block, x: block(x, view, past)[0]

        return self.through(x, lengths, taps, prepare)

    @property
    def streaming(self) -> Self:  # type: ignore[override]  # None in Zipformer
        """Return this object, which can encode an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Return the state of new streams.

        Its keys are module names, `seen` (number of valid cached frames of the front-end) and `chunk` (number of frames
        of the front-end in a chunk; 0 before the first one).

        Args:
            batch: number of streams.
            left_frames: left context in encoder frames; None: the encoder's setting.
        """
        left = self.left_frames if left_frames is None else left_frames
        state = named_state("subsampling", self.subsampling.initial_state(batch))
        for number, stack in enumerate(cast("list[Stack]", [*self.stacks])):
            for index in range(len(stack.blocks)):
                begun = _first(stack).initial_state(batch, _in_stack(left, stack))
                state |= named_state(f"stacks.{number}.blocks.{index}", begun)
        numbers = torch.zeros(batch, dtype=torch.int64, device=self.pooling.weight.device)
        return state | {"seen": numbers, "chunk": numbers.clone()}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]:
        """Encode the next chunk of each stream.

        Args:
            features: features of the chunk and of its right context, (B, T, F), as in `ConformerStreaming.step`. All
                chunks of a stream have the same size, a multiple of `chunk_multiple`; the last one may be smaller.
            feature_lengths: number of valid frames of each stream, (B,). It is less than T only for streams that end.
            state: state of the streams; its size determines the left context.
            taps: taps by block index.
            ahead: number of feature frames of right context: `right_frames * stride`, or None.

        Returns:
            The encoder's output for the chunks, and the next state.

        Raises:
            InputError: the right context is another one.
        """
        right = self.right_frames * self.stride
        if ahead not in (None, right):
            raise InputError(f"the right context must be {right} feature frames for zipformer_streaming; got {ahead}.")
        # The last chunk may be incomplete.
        whole = F.pad(features, (0, 0, 0, (right - features.shape[1]) % (self.chunk_multiple * self.stride)))
        unread = self.stride - self.first_frames - (self.subsampling.stride - self.subsampling.first_frames)
        x, lengths, front_end = self.subsampling.step(
            whole[:, unread:],
            (feature_lengths - unread).clamp(min=0),
            state_of(state, "subsampling"),
            right - unread,
        )
        begun, chunk = state["chunk"] > 0, state["chunk"].clamp(min=x.shape[1])
        names = {named.module: name for name, named in self.named_blocks()}
        new = named_state("subsampling", front_end) | {"seen": state["seen"] + lengths, "chunk": chunk}

        def prepare(stack: Stack, x: Tensor, lengths: Tensor, padding: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
            first, size = _first(stack), x.shape[1]
            earlier = state[f"{names[first]}.keys"].shape[1]
            seen = (state["seen"] // stack.stride).clamp(max=earlier)
            absent = padding_mask(seen, earlier).flip(1)  # (B, M), valid frames last
            ends = torch.where(begun, chunk // stack.stride, lengths.clamp(max=size))
            hidden = torch.cat([absent, padding], dim=1)[:, None]  # (B, 1, M + Q)
            view = ChunkView(first.positions(x, earlier), hidden, padding, size, ends)

            def call(block: nn.Module, x: Tensor) -> Tensor:
                x, after = block(x, view, state_of(state, names[block]))
                new.update(named_state(names[block], after))
                return x

            return call

        return self.through(x, lengths, taps, prepare), new

    def _drawn(self) -> tuple[int | None, int]:
        """Draw the chunk size and left context of a training batch."""
        return drawn(self.training_chunk_frames), drawn(self.training_left_frames)


def _in_stack(frames: int, stack: Stack) -> int:
    """Return the number of whole frames of a stack in a number of encoder frames."""
    return OUTPUT_STRIDE * frames // stack.stride


def _first(stack: Stack) -> Any:
    return stack.blocks[0]


def _streaming(subsampling: Subsampling) -> StreamingSubsampling:
    """Return the front-end, after checking that it can use results of earlier chunks."""
    if subsampling.streaming is None:
        must = "encoder.subsampling must be able to continue from chunk to chunk in zipformer_streaming"
        raise InputError(f"{must}; {type(subsampling).__name__} cannot. Take encoder/subsampling=convnext.")
    return subsampling.streaming


def _check_blocks(blocks: NamedBlocks) -> None:
    for _, block in blocks:
        if cast(Any, block.module).streaming is None:
            must = "encoder.block must be able to continue from chunk to chunk in zipformer_streaming"
            cure = "Take encoder/block=zipformer_streaming_block."
            raise InputError(f"{must}; {type(block.module).__name__} cannot. {cure}")


def _check_chunks(sizes: Mapping[str, Sequence[int | None]], multiple: int, strides: Sequence[int]) -> None:
    """Check that chunks begin with a frame of every stack; `sizes` are by setting."""
    for name, frames in sizes.items():
        wrong = [size for size in frames if size is not None and size % multiple]
        if wrong:
            must = f"encoder.{name} must be a multiple of {multiple}, for encoder.strides={[*strides]}"
            raise InputError(f"{must}; got {wrong[0]}.")
