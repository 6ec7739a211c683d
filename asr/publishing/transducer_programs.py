"""A transducer written down as programs: its encoder, its prediction network and its joiner."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from asr.interfaces import Encoded, TransducerHead
from asr.onnx.names import ENCODER_OUTPUTS, JOINER, JOINER_NAMES, PREDICTOR, PREDICTOR_NAMES
from asr.publishing.agreement import ProgramDifference
from asr.publishing.program import BATCH, Net, write_down
from asr.recognition.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto

BATCHES, NUM_TOKENS = (1, 2, 5), 4  # that are compared


class TransducerNet(Net):
    """Features, feature_lengths to what the joiner takes, (B, T', J), log_probs of the CTC head, and lengths."""

    outputs = ENCODER_OUTPUTS

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
