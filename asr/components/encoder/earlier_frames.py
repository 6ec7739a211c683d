"""Results of a streaming encoder's blocks for earlier frames: of all chunks in a batch, or the state of streams."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.interfaces import State


class EarlierResults(Protocol):
    """Results of a block for earlier frames."""

    def keys_values_before(self, new: Tensor) -> Tensor:
        """Return the keys and values of the M earlier frames, (B, M, 2D); `new` are those of new frames, (B, Q, 2D)."""

    def frames_before(self, new: Tensor) -> Tensor:
        """Return the convolution's inputs at the earlier frames, (B, num_kept, D); `new` are new ones, (B, Q, D)."""

    def after(self, keys_values: Tensor, frames: Tensor) -> "StreamState | None":
        """Return a state with the results for earlier and new frames, (B, M + Q, 2D) and (B, num_kept + Q, D)."""


class StreamState(NamedTuple):
    """State of a block between the steps of a stream: the results for earlier frames.

    Args:
        keys_values: keys and values of the attention, (B, M, 2D).
        frames: inputs of the convolution, (B, num_kept, D).
    """

    keys_values: Tensor
    frames: Tensor

    def keys_values_before(self, new: Tensor) -> Tensor:
        """Return those of the state."""
        return self.keys_values

    def frames_before(self, new: Tensor) -> Tensor:
        """Return those of the state."""
        return self.frames

    def after(self, keys_values: Tensor, frames: Tensor) -> "StreamState":
        """Return a state with the results for earlier and new frames, (B, M + Q, 2D) and (B, num_kept + Q, D)."""
        return StreamState(keys_values, frames)


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


def drawn(choices: Sequence[Any]) -> Any:
    """Draw one of the values of a setting with torch's CPU generator, with equal probabilities."""
    return choices[int(torch.randint(len(choices), ()))]


def named_state(name: str, state: State) -> State:
    """Return the state of a part as a part of the encoder's state."""
    return {f"{name}.{key}": value for key, value in state.items()}


def state_of(state: State, name: str) -> State:
    """Return the state of a part from the encoder's state."""
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
