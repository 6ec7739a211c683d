"""A transducer head whose prediction network and joiner are ONNX programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from asr.base.kernels.token_mask import TokenMask
from asr.base.onnx.names import (
    ENCODER,
    ENCODER_OUTPUTS,
    HYBRID_OUTPUTS,
    JOINER,
    JOINER_NAMES,
    NET_INPUTS,
    PREDICTOR,
    PREDICTOR_NAMES,
)
from asr.base.onnx.session import check_tokens, run, session
from asr.components.head.transducer import Transducer
from asr.components.program.runtime import LogProbs, OnnxEncoder
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, Encoder, Head, Targets, TransducerHead
from asr.lengths import Lengths

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxPredictor:
    """The prediction network; its output is already projected to the joiner's dimension J."""

    def __init__(self, opened: "InferenceSession") -> None:
        self._session = opened
        state = opened.get_inputs()[1]
        self._shape: list[int] = state.shape[1:]
        self._dtype = torch.int64 if "int64" in state.type else torch.float32
        self.output_dim: int = opened.get_outputs()[0].shape[1]

    def initial_state(self, batch: int) -> Tensor:
        """Return the state before the first token: zeros."""
        return torch.zeros(batch, *self._shape, dtype=self._dtype)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Process one token per hypothesis, (B,); return the outputs, (B, J), and the next state."""
        out, state = run(self._session, tokens, state)
        return out, state

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, U) to (B, U + 1, J): an output before the first token and after each token."""
        outs, state = [], self.initial_state(len(tokens))
        for column in nn.functional.pad(tokens, (1, 0)).unbind(dim=1):
            out, state = self.step(column, state)
            outs.append(out)
        return torch.stack(outs, dim=1)


class OnnxJoiner:
    """The joiner; it reads the first J values of an encoder frame."""

    def __init__(self, opened: "InferenceSession") -> None:
        self._session = opened
        self.dim: int = opened.get_inputs()[0].shape[1]
        self.mask = TokenMask()

    def of_frames(self, encoder_out: Tensor) -> Tensor:
        """Return the first J values of encoder_out (B, T', ...): (B, T', J)."""
        return encoder_out[..., : self.dim]

    def of_tokens(self, predictor_out: Tensor) -> Tensor:
        """Return the argument unchanged, because the prediction network's program includes the projection."""
        return predictor_out

    def __call__(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """Map (..., J) and (..., J) to log_probs (..., V), or (..., V + number of durations); masked ones are -inf."""
        frames, tokens = torch.broadcast_tensors(frames, tokens)
        [log_probs] = run(self._session, frames.flatten(0, -2), tokens.flatten(0, -2))
        return self.mask.logits(log_probs.unflatten(0, frames.shape[:-1]))


class OnnxTransducer:
    """A transducer head that consists of ONNX programs, and the log_probs of a CTC head if the model also has one.

    Args:
        predictor: prediction network.
        joiner: joint network.
        durations: durations that the joiner predicts, in encoder frames; (): none.
        frame_head: returns the CTC head's log_probs; None: the model has no CTC head.
    """

    loss_names: tuple[str, ...] = ()
    taps = NO_TAPS
    decoders = Transducer.decoders
    views = 1

    def __init__(
        self,
        predictor: OnnxPredictor,
        joiner: OnnxJoiner,
        durations: tuple[int, ...],
        frame_head: LogProbs | None,
    ) -> None:
        self.predictor = predictor
        self.durations = durations
        self.joiner = joiner
        self.frame_head = frame_head

    @property
    def frame_joiner(self) -> OnnxJoiner | None:
        """The joiner, if each output belongs to one frame; None with durations."""
        return None if self.durations else self.joiner

    def restrict(self, allowed: Tensor) -> None:
        """Restrict the joiner and the CTC head to the allowed tokens, (V,)."""
        self.joiner.mask.restrict(allowed)
        if self.frame_head is not None:
            self.frame_head.restrict(allowed)

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Raise InputError, because a program cannot be trained."""
        raise InputError("a model exported to ONNX can be run, not trained. Give the bundle that it was exported from.")

    def min_frames(self, tokens: list[int]) -> int:
        """Return the minimum number of frames for `tokens`: the minimum of the CTC head, or 1 without a CTC head."""
        return 1 if self.frame_head is None else self.frame_head.min_frames(tokens)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Return the number of elements of the joint network's input for all frames."""
        return frames * self.predictor.output_dim


def open_transducer(
    programs: Mapping[str, Path | bytes], encoder: Encoder, head: Head, vocab_size: int
) -> tuple[OnnxEncoder, OnnxTransducer]:
    """Open the programs of a transducer: its encoder and its head.

    Args:
        programs: programs by file name.
        encoder: encoder of the model that was exported, with or without weights.
        head: head of that model.
        vocab_size: number of tokens.

    Raises:
        InputError: a program is damaged, or does not belong to the model.
    """
    durations = cast(TransducerHead, head).durations
    frame_head = None if head.frame_head is None else LogProbs(vocab_size)
    encoder_session = session(programs[ENCODER], NET_INPUTS, ENCODER_OUTPUTS if frame_head is None else HYBRID_OUTPUTS)
    if frame_head is not None:
        check_tokens(programs[ENCODER], encoder_session, vocab_size)
    joiner_session = session(programs[JOINER], *JOINER_NAMES)
    check_tokens(programs[JOINER], joiner_session, vocab_size + len(durations))
    predictor, joiner = OnnxPredictor(session(programs[PREDICTOR], *PREDICTOR_NAMES)), OnnxJoiner(joiner_session)
    output_dim = joiner.dim + (0 if frame_head is None else vocab_size)
    opened = OnnxEncoder(encoder_session, encoder, output_dim)
    return opened, OnnxTransducer(predictor, joiner, durations, frame_head)
