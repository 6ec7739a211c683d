"""Make a model from exported ONNX programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from asr.base.onnx.names import ENCODER, NET_INPUTS, NET_OUTPUTS, PROGRAM, STEP, step_names
from asr.base.onnx.session import check_tokens, run, session
from asr.components.program.runtime import LogProbs, OnnxEncoder
from asr.components.program.transducer import open_transducer
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, Encoder, Head, NamedBlocks, State, StreamingEncoder, Taps

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxStreamingEncoder:
    """An encoder whose `step` is an ONNX program, `opened`; `whole` encodes whole recordings.

    The program was exported from `made_of`, which needs no weights.
    """

    def __init__(self, whole: OnnxEncoder, opened: "InferenceSession", made_of: StreamingEncoder) -> None:
        self._whole, self._session = whole, opened
        self.output_dim = whole.output_dim
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths
        self.chunk_frames = made_of.chunk_frames
        self.chunk_choices = made_of.chunk_choices
        self.left_frames = made_of.left_frames
        self.right_frames = made_of.right_frames
        self.chunk_multiple = made_of.chunk_multiple
        self.is_right_fixed = made_of.is_right_fixed
        self.first_frames = made_of.first_frames
        meta = made_of.initial_state(1)
        self._state = {name: torch.zeros(rows.shape[1:], dtype=rows.dtype) for name, rows in meta.items()}

    def named_blocks(self) -> NamedBlocks:
        """Return an empty list, because a program does not output the results of blocks."""
        return []

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode whole utterances with the `OnnxEncoder`."""
        return self._whole(features, feature_lengths)

    @property
    def streaming(self) -> Self:
        """Return this object, because it can encode an utterance chunk by chunk."""
        return self

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Return the state of `batch` new streams, all zeros; `left_frames` is ignored, since the program fixes it."""
        return {name: rows.expand(batch, *rows.shape).clone() for name, rows in self._state.items()}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]:
        """Encode the next chunk of each stream; the right context must have the length fixed by the program."""
        out, lengths, *next_state = run(
            self._session, features.float(), feature_lengths, *(state[name] for name in self._state)
        )
        return Encoded(out, lengths, {}), dict(zip(self._state, next_state, strict=True))


def open_step(program: Path | bytes, made_of: StreamingEncoder, vocab_size: int) -> "InferenceSession":
    """Open the program of a step of `made_of`, whose weights are not read.

    Raises:
        InputError: the program is damaged, or does not belong to the model.
    """
    opened = session(program, *step_names(made_of.initial_state(1)))
    check_tokens(program, opened, vocab_size)
    return opened


class Exported:
    """An encoder and a head that are ONNX programs.

    Args:
        encoder: encoder of the model that was exported; it needs no weights.
        head: head of that model; it needs no weights.
        vocab_size: number of tokens of the model's tokenizer.
        programs: ONNX files, or their contents, by file name.

    Raises:
        InputError: a program is damaged, or does not belong to the model.
    """

    def __init__(self, encoder: Encoder, head: Head, vocab_size: int, programs: Mapping[str, Path | bytes]) -> None:
        self.encoder, self.head = _opened(encoder, head, vocab_size, programs)


def _opened(
    encoder: Encoder, head: Head, vocab_size: int, programs: Mapping[str, Path | bytes]
) -> tuple[Encoder, Head]:
    if ENCODER in programs:
        return open_transducer(programs, encoder, head, vocab_size)
    opened = session(programs[PROGRAM], NET_INPUTS, NET_OUTPUTS)
    check_tokens(programs[PROGRAM], opened, vocab_size)
    if STEP in programs:
        whole = OnnxEncoder(opened, encoder, vocab_size)
        encoder_of_config = encoder.streaming
        if encoder_of_config is None:
            raise InputError(f"{STEP} must belong to a streaming encoder; got {type(encoder).__name__}.")
        step = open_step(programs[STEP], encoder_of_config, vocab_size)
        return OnnxStreamingEncoder(whole, step, encoder_of_config), LogProbs(vocab_size)
    return OnnxEncoder(opened, encoder, vocab_size), LogProbs(vocab_size)
