"""A streaming encoder whose step is a program: features and a state in, log_probs and the next state out."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from asr.interfaces import NO_TAPS, Encoded, State, StreamingEncoder, Taps
from asr.onnx.names import step_names
from asr.onnx.runtime import OnnxEncoder
from asr.onnx.session import check_tokens, run, session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxStreamingEncoder:
    """An encoder whose `step` is a program.

    Args:
        whole: runs the program of whole recordings.
        opened: runs that of a step.
        made_of: the encoder that was exported, which needs no weights.
    """

    blocks = nn.ModuleList()  # none can be tapped

    def __init__(self, whole: OnnxEncoder, opened: "InferenceSession", made_of: StreamingEncoder) -> None:
        self._whole, self._session = whole, opened
        self.output_dim = whole.output_dim
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths
        self.chunk_frames = made_of.chunk_frames
        self.left_frames = made_of.left_frames
        self.right_frames = made_of.right_frames
        meta = made_of.initial_state(1)
        self._state = {name: torch.zeros(rows.shape[1:], dtype=rows.dtype) for name, rows in meta.items()}

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """As `OnnxEncoder`."""
        return self._whole(features, feature_lengths)

    @property
    def streaming(self) -> Self:
        """Itself: it processes an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Begin so many streams: with zeros. What is seen around a chunk is what the program was made for."""
        return {name: rows.expand(batch, *rows.shape).clone() for name, rows in self._state.items()}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]:
        """Go on with streams by a chunk of each, behind which stand as many frames as the program was made for."""
        out, lengths, *behind = run(
            self._session, features.float(), feature_lengths, *(state[name] for name in self._state)
        )
        return Encoded(out, lengths, {}), dict(zip(self._state, behind, strict=True))


def open_step(program: Path | bytes, made_of: StreamingEncoder, vocab_size: int) -> "InferenceSession":
    """Open the program of a step.

    Args:
        program: an ONNX file, or what one holds.
        made_of: the encoder that was exported, which needs no weights.
        vocab_size: V.

    Raises:
        InputError: it is damaged, or not of such a model.
    """
    opened = session(program, *step_names(made_of.initial_state(1)))
    check_tokens(program, opened, vocab_size)
    return opened
