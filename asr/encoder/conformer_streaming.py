"""The Conformer encoder that hears speech while it is spoken."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.encoder.conformer import ConformerBlock, FeedForward
from asr.encoder.stack import check_heads, run_blocks
from asr.errors import InputError
from asr.interfaces import (
    NO_TAPS,
    ActivationMaker,
    Attention,
    Convolution,
    Encoded,
    NormMaker,
    State,
    StreamingAttention,
    StreamingConvolution,
    Taps,
)
from asr.kernels.positions import sinusoids
from asr.lengths import padding_mask
from asr.settings.rule import Bias, Dim, FeedForwardFactor, Heads, Layers, Probability, list_of, or_null, whole

Frames = whole(0, 100_000)
RightFrames = whole(0, 1_000)  # what waits for so many is no stream; a step computes as many again
ChunkFrames = or_null(whole(1, 100_000))


class Kept(NamedTuple):
    """What a block keeps of the frames before, while a stream goes on.

    Args:
        keys_values: of its attention, (B, M, 2D).
        frames: of its convolution, (B, kernel // 2, D).
    """

    keys_values: Tensor
    frames: Tensor

    def keys_values_before(self, new: Tensor) -> Tensor:
        """(B, M, 2D) before (B, Q, 2D)."""
        return self.keys_values

    def frames_before(self, new: Tensor) -> Tensor:
        """(B, kernel // 2, D) before (B, Q, D)."""
        return self.frames

    def after(self, keys_values: Tensor, frames: Tensor) -> "Kept":
        """Take up the same of all frames, (B, M + Q, 2D), (B, kernel // 2 + Q, D)."""
        return Kept(keys_values, frames)


class Chunks(NamedTuple):
    """All chunks of whole utterances, a row of a batch each: what is before one are frames of the rows above it.

    Args:
        batch: B, utterances.
        frames: c, of a chunk; those behind them in a row are only seen from it, and come again in the next one.
        left: M, frames before a chunk whose keys and values are seen.
        kept: kernel // 2, frames that the convolution sees before a chunk.
    """

    batch: int
    frames: int
    left: int
    kept: int

    def cut(self, x: Tensor, before: int, behind: int) -> Tensor:
        """(B, T', D) to (B n, before + behind, D): frames around the beginning of each chunk; zeros where none are."""
        begins = torch.arange((x.shape[1] + self.frames - 1) // self.frames, device=x.device) * self.frames
        place = begins[:, None] + torch.arange(before + behind, device=x.device)  # (n, before + behind)
        padded = F.pad(x, (0, 0, before, behind))
        return padded.index_select(1, place.flatten()).unflatten(1, place.shape).flatten(0, 1)

    def joined(self, x: Tensor) -> Tensor:
        """(B n, Q, D) to (B, n c, D): the frames of the chunks, one after another."""
        return x[:, : self.frames].reshape(self.batch, -1, x.shape[2])

    def keys_values_before(self, new: Tensor) -> Tensor:
        """(B n, M, 2D) before (B n, Q, 2D)."""
        return self.cut(self.joined(new), self.left, 0)

    def frames_before(self, new: Tensor) -> Tensor:
        """(B n, kernel // 2, D) before (B n, Q, D)."""
        return self.cut(self.joined(new), self.kept, 0)

    def after(self, keys_values: Tensor, frames: Tensor) -> None:
        """Keep nothing: no chunk follows."""


class ConformerStreaming(nn.Module):
    """A Conformer whose frames see their own chunk and what is near it: chunk by chunk it gives what the whole gives.

    A frame sees its chunk, `left_frames` before it, as the chunks before have left them, and `right_frames` behind
    it. These are computed once more with the next chunk, which sees more of what follows: that is the price of a
    chunk whose last words are not cut off. The convolution sees as much of that as its kernel reaches, and the
    subsampling nothing behind the feature frames that an encoder frame stands for. So what an utterance's first
    chunks give does not change when more is heard. The weights are those of a `Conformer` by name and shape: either
    starts from the other's.

    *Source*: attention to a chunk and a cached past: Dai et al. 2019, arXiv:1901.02860, section 3.2; frames behind a
    chunk, computed again with the next: Shi et al. 2021, arXiv:2010.10759; chunks drawn in training, so
    that one model serves many latencies: Zhang et al. 2020, arXiv:2012.05481, section 2.3; a convolution that ends
    with the chunk: Li et al. 2023, arXiv:2304.09325, section 3.2.

    Args:
        input_dim: F.
        dim: D.
        num_layers: blocks.
        num_heads: attention heads; must divide D.
        feed_forward_factor: inner dimension of the feed-forward modules, as a multiple of D.
        feed_forward_bias: of their linear layers.
        dropout: as in `Conformer`.
        chunk_frames: of T', outside training; None: all of an utterance.
        left_frames: that are seen before a chunk, of T', outside training.
        right_frames: that are seen behind a chunk, of T', outside training; it waits for them.
        training_chunk_frames: one of these for each batch in training, each equally likely.
        training_left_frames: the same.
        training_right_frames: the same.
        subsampling: makes the front-end, given F and D.
        attention: makes the self-attention of a block, given D, num_heads and dropout.
        convolution: makes the convolution module of a block, given D, the norm and the activation.
        norm: makes the norm of the convolution module, given D.
        activation: makes that of each feed-forward and convolution module.

    Raises:
        InputError: a setting does not hold, or a part sees frames to come.
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
        subsampling: Callable[[int, int], Any],
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
        self.subsampling = subsampling(input_dim, dim)
        self.stride: int = self.subsampling.stride
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
        self._num_kept = _check_parts(cast(ConformerStreamingBlock, self.blocks[0]))

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """(B, T, F), (B,) to (B, T', D), (B,): all chunks at once, as rows of a batch."""
        x, lengths = self.subsampling(features, feature_lengths)
        batch, frames = x.shape[:2]
        chunk, left, right = self._drawn() if self.training else self._set()
        if chunk is None:
            chunk, left, right = frames, 0, 0
        chunk, left, right = (torch.sym_min(size, frames) for size in (chunk, left, right))  # no row has room for more
        chunks = Chunks(batch, chunk, left, self._num_kept)
        there = ~padding_mask(lengths, frames)[:, :, None]  # (B, T', 1)
        hidden = ~chunks.cut(there, left, chunk + right)[:, None, :, 0]  # (B n, 1, left + chunk + right)
        rows, blocks, _ = self._through(chunks.cut(x, 0, chunk + right), hidden, [chunks] * len(self.blocks), taps)
        there_are = torch.arange(frames, device=x.device)  # by index, not as a slice: torch.export asks how that lies
        blocks = {index: chunks.joined(block).index_select(1, there_are) for index, block in blocks.items()}
        return Encoded(chunks.joined(rows).index_select(1, there_are), lengths, blocks)

    @property
    def streaming(self) -> Self:
        """Itself: it processes an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Begin so many streams, in which so many frames before a chunk are seen; None: as the encoder has it.

        Names are those of the modules; `seen` counts the frames that were kept.
        """
        left, one = self.left_frames if left_frames is None else left_frames, next(self.parameters())
        state = _named("subsampling", self.subsampling.initial_state(batch))
        for number in range(len(self.blocks)):
            state[f"blocks.{number}.keys_values"] = one.new_zeros(batch, left, 2 * self.output_dim)
            state[f"blocks.{number}.frames"] = one.new_zeros(batch, self._num_kept, self.output_dim)
        return state | {"seen": torch.zeros(batch, dtype=torch.int64, device=one.device)}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]:
        """Go on with streams by a chunk of each.

        Args:
            features: (B, T, F): a chunk of any number of feature frames, a multiple of `stride`, and behind it those
                that are only seen now, and begin the next chunk.
            feature_lengths: (B,); T, but for streams that end: what stands behind their frames is not seen, and must
                be there (`asr.recognition.cached_stream.with_room`).
            state: of the streams; how many frames are kept in it is how many are seen before a chunk.
            taps: by number of the block.
            ahead: feature frames behind the chunk, a multiple of `stride`; None: `right_frames` times that.

        Returns:
            What the encoder gives of the chunks, and the state behind them.
        """
        ahead = self.right_frames * self.stride if ahead is None else ahead
        before, left = _part(state, "subsampling"), state["blocks.0.keys_values"].shape[1]
        x, seen_lengths, behind = self.subsampling.step(features, feature_lengths, before, ahead)
        frames = x.shape[1] - ahead // self.stride
        lengths = seen_lengths.clamp(max=frames)
        absent = padding_mask(state["seen"], left).flip(1)  # (B, M): what is there is next to the chunk
        hidden = torch.cat([absent, padding_mask(seen_lengths, x.shape[1])], dim=1)[:, None]  # (B, 1, M + Q)
        pasts = [Kept(**_part(state, f"blocks.{number}")) for number in range(len(self.blocks))]
        x, blocks, afters = self._through(x, hidden, pasts, taps)
        new = _named("subsampling", behind)
        for number, (keys_values, inputs) in enumerate(cast(list[Kept], afters)):
            new[f"blocks.{number}.keys_values"] = keys_values.narrow(1, frames, left)
            new[f"blocks.{number}.frames"] = inputs.narrow(1, frames, pasts[number].frames.shape[1])
        new["seen"] = (state["seen"] + lengths).clamp(max=left)
        blocks = {index: block.narrow(1, 0, frames) for index, block in blocks.items()}
        return Encoded(x.narrow(1, 0, frames), lengths, blocks), new

    def _through(
        self, x: Tensor, hidden: Tensor, pasts: Iterable[Kept | Chunks], taps: Taps
    ) -> tuple[Tensor, dict[int, Tensor], list[Kept | None]]:
        """Go through the blocks with (B, Q, D); `hidden` is (B, 1, M + Q), M the frames before."""
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
        """Draw the chunks of a training batch from torch's CPU generator, as dropout is: a function of its seed."""
        chunks, lefts, rights = self.training_chunk_frames, self.training_left_frames, self.training_right_frames
        return _one_of(chunks), _one_of(lefts), _one_of(rights)


class ConformerStreamingBlock(ConformerBlock):
    """A Conformer block that goes on from the frames before."""

    attention: StreamingAttention
    convolution: StreamingConvolution

    def forward(  # type: ignore[override]  # the weights are those of a ConformerBlock, what it is given is more
        self, x: Tensor, positions: Tensor, hidden: Tensor, padding_mask: Tensor, past: Kept | Chunks
    ) -> tuple[Tensor, Kept | None]:
        """(B, Q, D) to (B, Q, D), and what is kept of all frames, those before them too."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        inner = self.norm_attention(x)
        branch, keys_values = self.attention.extend(inner, past.keys_values_before, positions, hidden)
        x = x + self.dropout(branch)
        branch, frames = self.convolution.extend(self.norm_convolution(x), past.frames_before, padding_mask)
        x = x + self.dropout(branch)
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x), past.after(keys_values, frames)


def _check_parts(block: ConformerStreamingBlock) -> int:
    """Check that the parts of a block can go on from chunk to chunk, and need no later frames.

    Returns:
        Frames before a chunk that the convolution sees.

    Raises:
        InputError: a part cannot, or needs later frames.
    """
    parts: dict[str, tuple[Attention | Convolution, str]] = {
        "attention": (block.attention, "relative_attention or local_attention"),
        "convolution": (block.convolution, "depthwise_convolution"),
    }
    for name, (part, those) in parts.items():
        if part.streaming is None:
            must = f"encoder.{name} must be {those} in conformer_streaming, to go on from chunk to chunk"
            raise InputError(f"{must}; {type(part).__name__} cannot.")
    norm = block.convolution.norm
    if not norm.framewise:
        must = "encoder.norm must be masked_batch_norm or layer_norm in conformer_streaming, to need no frames to come"
        raise InputError(f"{must}; {type(norm).__name__} needs all of an utterance.")
    return block.convolution.num_kept


def _one_of(choices: Sequence[Any]) -> Any:
    return choices[int(torch.randint(len(choices), ()))]


def _named(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _part(state: State, name: str) -> State:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
