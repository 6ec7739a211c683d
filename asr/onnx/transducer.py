"""A transducer as programs: its encoder, its prediction network, its joiner, and the decoder's loop around them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from asr.head.ctc import CTC
from asr.interfaces import NO_TAPS, Encoded, TransducerHead
from asr.lengths import Lengths
from asr.onnx.agreement import ProgramDifference
from asr.onnx.names import ENCODER, JOINER, PREDICTOR
from asr.onnx.program import BATCH, LENGTHS, LOG_PROBS, NET_INPUTS, Net, write_down
from asr.onnx.runtime import LogProbs
from asr.onnx.session import check_tokens, run, session
from asr.recognition.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

ENCODER_OUT, PREDICTOR_OUT = "encoder_out", "predictor_out"  # as the joiner takes them
TOKENS, STATE, NEXT_STATE = "tokens", "state", "next_state"
BATCHES, NUM_TOKENS = (1, 2, 5), 4  # that are compared
PREDICTOR_NAMES = ((TOKENS, STATE), (PREDICTOR_OUT, NEXT_STATE))
JOINER_NAMES = ((ENCODER_OUT, PREDICTOR_OUT), (LOG_PROBS,))


class TransducerNet(Net):
    """Features, feature_lengths to what the joiner takes, (B, T', J), log_probs of the CTC head, and lengths."""

    outputs = (ENCODER_OUT, LOG_PROBS, LENGTHS)

    def of_encoded(self, encoded: Encoded) -> tuple[Tensor, ...]:
        """What the model's encoder gives, to all that is given of frames."""
        joiner = cast(TransducerHead, self.model.head).joiner
        return joiner.of_frames(encoded.out), self.head.log_probs(encoded.out)


class PredictorStep(nn.Module):
    """A token of each, (B,), and the state before it to what the joiner takes of it, (B, J), and the state behind."""

    def __init__(self, head: TransducerHead) -> None:
        super().__init__()
        self.head = cast(nn.Module, head)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As above."""
        head = cast(TransducerHead, self.head)
        out, state = head.predictor.step(tokens, state)
        return head.joiner.of_tokens(out), state


class Join(nn.Module):
    """What of a frame, (N, J), and of the tokens before it, (N, J), to log_probs (N, V) of what comes next."""

    def __init__(self, head: TransducerHead) -> None:
        super().__init__()
        self.head = cast(nn.Module, head)

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        """As above."""
        return cast(TransducerHead, self.head).joiner(encoder_out, predictor_out).log_softmax(dim=-1)


def export_head(model: Model) -> "dict[str, ModelProto]":
    """Write down prediction network and joiner, by the names of their files."""
    head = cast(TransducerHead, model.head)
    tokens, state = torch.zeros(2, dtype=torch.int64), head.predictor.initial_state(2)
    out, _ = PredictorStep(head)(tokens, state)
    return {
        PREDICTOR: write_down(PredictorStep(head), (tokens, state), PREDICTOR_NAMES, (BATCH, BATCH)),
        JOINER: write_down(Join(head), (torch.randn_like(out), out), JOINER_NAMES, (BATCH, BATCH)),
    }


@torch.inference_mode()
def difference(expected: Model, actual: Model) -> ProgramDifference:
    """Compare the programs of prediction network and joiner with the model, token by token.

    Args:
        expected: the model.
        actual: the one that its programs are.
    """
    worst = ProgramDifference(0.0, "nowhere", 0, 0)
    heads = [cast(TransducerHead, model.head) for model in (expected, actual)]
    generator = torch.Generator().manual_seed(0)
    for batch in BATCHES:
        states = [head.predictor.initial_state(batch) for head in heads]
        tokens = torch.zeros(batch, dtype=torch.int64)
        for number in range(NUM_TOKENS):
            outs = []
            for which, head in enumerate(heads):
                out, states[which] = head.predictor.step(tokens, states[which])
                outs.append(head.joiner.of_tokens(out))
            frames = torch.randn(outs[0].shape, generator=generator)
            log_probs = [head.joiner(frames, outs[0]).log_softmax(dim=-1) for head in heads]
            largest = max(float((left - right).abs().max()) for left, right in (outs, states, log_probs))
            if not largest <= worst.largest:
                worst = ProgramDifference(largest, f"{number} tokens in a batch of {batch}", 0, 0)
            tokens = torch.randint(1, expected.tokenizer.vocab_size, (batch,), generator=generator)
    return worst


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
    encoder = session(programs[ENCODER], NET_INPUTS, TransducerNet.outputs)
    check_tokens(programs[ENCODER], encoder, vocab_size)
    joiner = session(programs[JOINER], *JOINER_NAMES)
    check_tokens(programs[JOINER], joiner, vocab_size)
    predictor = session(programs[PREDICTOR], *PREDICTOR_NAMES)
    return encoder, OnnxTransducer(OnnxPredictor(predictor), OnnxJoiner(joiner), vocab_size)
