"""Export of a transducer: its encoder, its prediction network and its joiner."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from asr.apps.export.agreement import ProgramDifference
from asr.apps.export.program import BATCH, Net, write_down
from asr.base.onnx.names import ENCODER_OUTPUTS, HYBRID_OUTPUTS, JOINER, JOINER_NAMES, PREDICTOR, PREDICTOR_NAMES
from asr.components.decode.predictions import next_log_probs
from asr.core.recognition.model import Model
from asr.interfaces import TransducerHead

if TYPE_CHECKING:
    from onnx import ModelProto

BATCHES, NUM_TOKENS = (1, 2, 5), 4  # batch sizes that are compared, and number of tokens in each comparison


def head_of(model: Model) -> TransducerHead:
    """Return the head of a model whose decoder needs a joiner."""
    return cast(TransducerHead, model.head)


def transducer_net(model: Model) -> Net:
    """Return the network that computes the joiner's input, (B, T', J), and log_probs if the model has a CTC head."""
    joiner, frame_head = head_of(model).joiner, model.head.frame_head
    if frame_head is None:
        return Net(model, ENCODER_OUTPUTS, lambda encoded: (joiner.of_frames(encoded.out),))
    return Net(
        model, HYBRID_OUTPUTS, lambda encoded: (joiner.of_frames(encoded.out), frame_head.log_probs(encoded.out))
    )


class PredictorStep(nn.Module):
    """Maps tokens (B,) and the state before them to the joiner's input, (B, J), and the next state."""

    def __init__(self, head: TransducerHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joiner's input and the state."""
        out, state = self.head.predictor.step(tokens, state)
        return self.head.joiner.of_tokens(out), state


class Join(nn.Module):
    """Maps outputs of the encoder and of the prediction network, (N, J) each, to log_probs of the next token.

    The log_probs are (N, V). With durations they are (N, V + number of durations).
    """

    def __init__(self, head: TransducerHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        """Return the log_probs."""
        token_log_probs, duration_log_probs = next_log_probs(self.head, encoder_out, predictor_out)
        return torch.cat([token_log_probs, duration_log_probs], dim=-1) if self.head.durations else token_log_probs


def export_head(model: Model) -> "dict[str, ModelProto]":
    """Export the prediction network and the joiner; return the programs by file name."""
    head = head_of(model)
    tokens, state = torch.zeros(2, dtype=torch.int64), head.predictor.initial_state(2)
    out, _ = PredictorStep(head)(tokens, state)
    return {
        PREDICTOR: write_down(PredictorStep(head), (tokens, state), PREDICTOR_NAMES, (BATCH, BATCH)),
        JOINER: write_down(Join(head), (torch.randn_like(out), out), JOINER_NAMES, (BATCH, BATCH)),
    }


@torch.inference_mode()
def difference(expected: Model, actual: Model) -> ProgramDifference:
    """Compare the programs of the prediction network and the joiner with the model, token by token."""
    worst = ProgramDifference(0.0, "nowhere", 0, 0)
    heads = [head_of(model) for model in (expected, actual)]
    joins = [Join(head) for head in heads]
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
            log_probs = [join(frames, outs[0]) for join in joins]
            largest = max(float((left - right).abs().max()) for left, right in (outs, states, log_probs))
            if not largest <= worst.largest:
                worst = ProgramDifference(largest, f"{number} tokens in a batch of {batch}", 0, 0)
            tokens = torch.randint(1, expected.tokenizer.vocab_size, (batch,), generator=generator)
    return worst
