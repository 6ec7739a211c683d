"""The Conformer encoder that hears speech while it is spoken."""

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from asr.encoder.conformer import ConformerBlock, FeedForward
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, MaskedNorm, State, Tap
from asr.kernels.positions import sinusoids
from asr.lengths import padding_mask
from asr.system.settings import Bias, Dim, Heads, Layers, Probability, above, list_of, or_null, whole

Frames = whole(0, 100_000)
ChunkFrames = or_null(whole(1, 100_000))


class Kept(NamedTuple):
    """What a block keeps of the frames before.

    Args:
        keys_values: of its attention, (B, M, 2D).
        frames: of its convolution, (B, kernel // 2, D).
    """

    keys_values: Tensor
    frames: Tensor


class ConformerStreaming(nn.Module):
    """A Conformer whose frames see their own chunk and a bounded past: chunk by chunk it gives what the whole gives.

    A frame attends to its chunk and to `left_frames` before that, its convolution sees what is before and the rest of
    its chunk, and the subsampling nothing behind the feature frames that an encoder frame stands for. So what an
    utterance's first chunks give does not change when more is heard. The weights are those of a `Conformer` by name
    and shape: either starts from the other's.

    *Source*: attention to a chunk and a cached past: Dai et al. 2019, arXiv:1901.02860, section 3.2; chunks drawn in
    training, so that one model serves many latencies: Zhang et al. 2020, arXiv:2012.05481, section 2.3; the
    convolution: Li et al. 2023, arXiv:2304.09325, section 3.2.

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
        training_chunk_frames: one of these for each batch in training, each equally likely.
        training_left_frames: the same.
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
        feed_forward_factor: Annotated[float, above(0, 64)],
        feed_forward_bias: Bias,
        dropout: Probability,
        chunk_frames: Annotated[int | None, ChunkFrames],
        left_frames: Annotated[int, Frames],
        training_chunk_frames: Annotated[list[int | None], list_of(ChunkFrames, "such as [4, 16, null]", least=1)],
        training_left_frames: Annotated[list[int], list_of(Frames, "such as [64, 128]", least=1)],
        subsampling: Callable[[int, int], Any],
        attention: Callable[[int, int, float], Any],
        convolution: Callable[[int, Callable[[int], nn.Module], Callable[[], nn.Module]], nn.Module],
        norm: Callable[[int], nn.Module],
        activation: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        if dim % num_heads or dim % 2:
            must = "encoder.dim must be even and a multiple of encoder.num_heads"
            raise InputError(f"{must}; got dim={dim}, num_heads={num_heads}.")
        feed_forward_dim = round(feed_forward_factor * dim)
        self.output_dim = dim
        self.num_blocks = num_layers
        self.chunk_frames = chunk_frames
        self.left_frames = left_frames
        self.training_chunk_frames = training_chunk_frames
        self.training_left_frames = training_left_frames
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
        _check_parts(self.blocks[0])

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Mapping[int, Tap] = NO_TAPS) -> Encoded:
        """(B, T, F), (B,) to (B, T', D), (B,): all chunks at once, by masks."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        chunk, left = (self.chunk_frames, self.left_frames) if not self.training else self._drawn()
        hidden = padding[:, None]  # (B, 1, T')
        if chunk is not None:
            frame = torch.arange(x.shape[1], device=x.device)
            start = (frame // chunk * chunk)[:, None]  # of each query's chunk
            hidden = hidden | (frame >= start + chunk) | (frame < start - left)  # (B, T', T')
        x, blocks, _ = self._through(x, padding, hidden, chunk, repeat(None, self.num_blocks), taps)
        return Encoded(x, lengths, blocks)

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Begin so many streams, in which so many frames before a chunk are seen; None: as the encoder has it.

        Names are those of the modules; `seen` counts the frames that were kept.
        """
        left, one = self.left_frames if left_frames is None else left_frames, next(self.parameters())
        state = _named("subsampling", self.subsampling.initial_state(batch))
        for number, block in enumerate(self.blocks):
            convolution = cast(Any, block).convolution
            state[f"blocks.{number}.keys_values"] = one.new_zeros(batch, left, 2 * self.output_dim)
            state[f"blocks.{number}.frames"] = one.new_zeros(batch, convolution.num_kept, self.output_dim)
        return state | {"seen": torch.zeros(batch, dtype=torch.int64, device=one.device)}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Mapping[int, Tap] = NO_TAPS
    ) -> tuple[Encoded, State]:
        """Go on with streams by a chunk of each.

        Args:
            features: (B, T, F), of any number of feature frames.
            feature_lengths: (B,); a multiple of `stride`, but for streams that end.
            state: of the streams; how many frames are kept in it is how many are seen before a chunk.
            taps: by number of the block.

        Returns:
            What the encoder gives of the chunks, and the state behind them.
        """
        x, lengths, behind = self.subsampling.step(features, feature_lengths, _part(state, "subsampling"))
        padding = padding_mask(lengths, x.shape[1])
        before = [Kept(**_part(state, f"blocks.{number}")) for number in range(self.num_blocks)]
        left = state["blocks.0.keys_values"].shape[1]
        absent = padding_mask(state["seen"], left).flip(1)  # (B, M): what is there is next to the chunk
        hidden = torch.cat([absent, padding], dim=1)[:, None]  # (B, 1, M + T')
        x, blocks, kept = self._through(x, padding, hidden, None, before, taps)
        new = _named("subsampling", behind)
        for number, (keys_values, frames) in enumerate(kept):
            new[f"blocks.{number}.keys_values"] = keys_values[:, x.shape[1] :]
            new[f"blocks.{number}.frames"] = frames
        new["seen"] = (state["seen"] + lengths).clamp(max=left)
        return Encoded(x, lengths, blocks), new

    def _through(
        self,
        x: Tensor,
        padding: Tensor,
        hidden: Tensor,
        chunk: int | None,
        kept: Iterable[Kept | None],
        taps: Mapping[int, Tap],
    ) -> tuple[Tensor, dict[int, Tensor], list[Kept]]:
        """Go through the blocks with (B, T', D); `hidden` is (B, T' or 1, M + T'), M the frames whose keys are kept."""
        distances = torch.arange(hidden.shape[2] - 1, -x.shape[1], -1, device=x.device)
        positions = sinusoids(distances, x.shape[2]).to(x.dtype)  # (2 T' + M - 1, D)
        blocks: dict[int, Tensor] = {}
        behind: list[Kept] = []
        for index, (block, before) in enumerate(zip(self.blocks, kept, strict=True)):
            x, after = block(x, positions, hidden, padding, chunk, before)
            behind.append(after)
            if index in taps:
                blocks[index] = x
                x = taps[index](x, padding)
        return x, blocks, behind

    def _drawn(self) -> tuple[int | None, int]:
        """Draw the chunks of a training batch from torch's CPU generator, as dropout is: a function of its seed."""
        chunks, lefts = self.training_chunk_frames, self.training_left_frames
        return chunks[int(torch.randint(len(chunks), ()))], lefts[int(torch.randint(len(lefts), ()))]


class ConformerStreamingBlock(ConformerBlock):
    """A Conformer block that goes on from what it kept of the frames before."""

    def forward(  # type: ignore[override]  # the weights are those of a ConformerBlock, what it is given is more
        self, x: Tensor, positions: Tensor, hidden: Tensor, padding_mask: Tensor, chunk: int | None, before: Kept | None
    ) -> tuple[Tensor, Kept]:
        """(B, T', D) to (B, T', D) and what is kept; the arguments are those of attention and convolution."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        attention, convolution = cast(Any, self.attention), cast(Any, self.convolution)
        keys_values, frames = before or (None, None)
        branch, keys_values = attention.extend(self.norm_attention(x), keys_values, positions, hidden)
        x = x + self.dropout(branch)
        branch, frames = convolution.extend(self.norm_convolution(x), frames, padding_mask, chunk)
        x = x + self.dropout(branch)
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        return self.norm_output(x), Kept(keys_values, frames)


def _check_parts(block: nn.Module) -> None:
    """Check that no part of a block sees frames to come, or forgets those before.

    Raises:
        InputError: one does.
    """
    goes_on = {"attention": "relative_attention or local_attention", "convolution": "depthwise_convolution"}
    for name, those in goes_on.items():
        part = block.get_submodule(name)
        if not hasattr(part, "extend"):
            must = f"encoder.{name} must be {those} in conformer_streaming, to go on from chunk to chunk"
            raise InputError(f"{must}; {type(part).__name__} cannot.")
    norm = cast(MaskedNorm, block.get_submodule("convolution.norm"))
    if not norm.framewise:
        must = "encoder.norm must be masked_batch_norm or layer_norm in conformer_streaming, to need no frames to come"
        raise InputError(f"{must}; {type(norm).__name__} needs all of an utterance.")


def _named(name: str, state: State) -> State:
    return {f"{name}.{key}": value for key, value in state.items()}


def _part(state: State, name: str) -> State:
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
