"""A transducer's head whose prediction network and joiner are programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.interfaces import NO_TAPS, Encoded
from asr.lengths import Lengths
from asr.onnx.names import ENCODER, ENCODER_OUTPUTS, JOINER, JOINER_NAMES, NET_INPUTS, PREDICTOR, PREDICTOR_NAMES
from asr.onnx.runtime import LogProbs
from asr.onnx.session import check_tokens, run, session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxPredictor:
    """The prediction network; what comes out is as the joiner takes it.

    Args:
        opened: runs the program.
    """

    def __init__(self, opened: "InferenceSession") -> None:
        self._session = opened
        state = opened.get_inputs()[1]
        self._shape: list[int] = state.shape[1:]
        self._dtype = torch.int64 if "int64" in state.type else torch.float32
        self.output_dim: int = opened.get_outputs()[0].shape[1]

    def initial_state(self, batch: int) -> Tensor:
        """Begin: zeros."""
        return torch.zeros(batch, *self._shape, dtype=self._dtype)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each, (B,), and the state before it to (B, J) and the state behind it."""
        out, state = run(self._session, tokens, state)
        return out, state

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens (B, U) to what comes of none of them, of the first, and so on, (B, U + 1, J)."""
        outs, state = [], self.initial_state(len(tokens))
        for column in nn.functional.pad(tokens, (1, 0)).unbind(dim=1):
            out, state = self.step(column, state)
            outs.append(out)
        return torch.stack(outs, dim=1)


class OnnxJoiner:
    """The joiner; what it takes of an encoder frame are its first J numbers.

    Args:
        opened: runs the program.
    """

    def __init__(self, opened: "InferenceSession") -> None:
        self._session = opened
        self.dim: int = opened.get_inputs()[0].shape[1]

    def of_frames(self, encoder_out: Tensor) -> Tensor:
        """(B, T', ...) to (B, T', J)."""
        return encoder_out[..., : self.dim]

    def of_tokens(self, predictor_out: Tensor) -> Tensor:
        """The same: the prediction network's program has done it."""
        return predictor_out

    def __call__(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """(..., J) and (..., J) to log_probs (..., V)."""
        frames, tokens = torch.broadcast_tensors(frames, tokens)
        [log_probs] = run(self._session, frames.flatten(0, -2), tokens.flatten(0, -2))
        return log_probs.unflatten(0, frames.shape[:-1])


class OnnxTransducer:
    """A transducer's head of programs, and beside it the log_probs of its CTC head.

    Args:
        predictor: the prediction network.
        joiner: of its output and a frame.
        vocab_size: V.
    """

    loss_names: tuple[str, ...] = ()
    taps = NO_TAPS
    views = 1
    min_frames = staticmethod(CTC.min_frames)

    def __init__(self, predictor: OnnxPredictor, joiner: OnnxJoiner, vocab_size: int) -> None:
        self.predictor = predictor
        self.joiner = joiner
        self.frame_head = LogProbs(vocab_size)

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance by CTC, (B,): a program is not trained."""
        return self.frame_head.losses(encoded, tokens, token_lengths)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in log_probs."""
        return self.frame_head.cells(frames, tokens)


def open_transducer(programs: Mapping[str, Path | bytes], vocab_size: int) -> "tuple[InferenceSession, OnnxTransducer]":
    """Open the programs of a transducer: what runs its encoder, and its head.

    Args:
        programs: by the names of their files.
        vocab_size: V.

    Raises:
        InputError: one is damaged, or not of such a model.
    """
    encoder = session(programs[ENCODER], NET_INPUTS, ENCODER_OUTPUTS)
    check_tokens(programs[ENCODER], encoder, vocab_size)
    joiner = session(programs[JOINER], *JOINER_NAMES)
    check_tokens(programs[JOINER], joiner, vocab_size)
    predictor = session(programs[PREDICTOR], *PREDICTOR_NAMES)
    return encoder, OnnxTransducer(OnnxPredictor(predictor), OnnxJoiner(joiner), vocab_size)
