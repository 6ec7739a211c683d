"""A transducer in sherpa-onnx's layout for icefall's models: its predictor depends only on the last few tokens.

*Source*: export-onnx.py of icefall's recipe for Zipformer; offline-transducer-model.cc and
offline-transducer-greedy-search-decoder.cc in sherpa-onnx 2.0. Token 0 is the blank. Before the first token, the
decoder is given the blank, and -1 for each token before it. sherpa-onnx emits at most one token in a frame.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asr.apps.export.agreement import EncoderProgram, ProgramDifference
from asr.apps.export.program import BATCH, drop_unused, write_down
from asr.apps.export.sherpa_ctc import ZIPFORMER_INPUTS, with_normalization
from asr.apps.export.transducer_programs import Join, head_of
from asr.base.onnx.names import (
    ENCODER_OUTPUTS,
    JOINER_NAMES,
    PREDICTOR_OUT,
    SHERPA_DECODER,
    SHERPA_ENCODER,
    SHERPA_JOINER,
    TOKENS,
)
from asr.base.onnx.session import run, session
from asr.core.recognition.model import Model
from asr.interfaces import BLANK_ID, TransducerHead

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

DECODER_NAMES = ((TOKENS,), (PREDICTOR_OUT,))
NO_TOKEN = -1  # before the first tokens
NUM_FRAMES = 4  # frames in which decoder and joiner are compared


def is_stateless(head: TransducerHead) -> bool:
    """Whether the state of a head's predictor is its last tokens, (B, N)."""
    state = head.predictor.initial_state(1)
    return state.dim() == 2 and not state.is_floating_point()


def context_size(head: TransducerHead) -> int:
    """Return N, the number of tokens that the predictor depends on."""
    return head.predictor.initial_state(1).shape[1]


class StatelessDecoder(nn.Module):
    """Maps the last tokens, (B, N), to the joiner's input, (B, J)."""

    def __init__(self, head: TransducerHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor) -> Tensor:
        """Step through the tokens from the initial state; NO_TOKEN does not change the state."""
        predictor = self.head.predictor
        state = predictor.initial_state(1).expand(tokens.shape[0], -1)
        for token in tokens.unbind(dim=1):
            out, following = predictor.step(token.clamp(min=0), state)
            state = torch.where((token == NO_TOKEN)[:, None], state, following)
        return self.head.joiner.of_tokens(out)


def export_stateless_head(model: Model) -> "dict[str, ModelProto]":
    """Export the decoder and the joiner; return the programs by file name."""
    from onnx import helper

    head, decoder = head_of(model), StatelessDecoder(head_of(model))
    tokens = torch.tensor([[NO_TOKEN] * (context_size(head) - 1) + [BLANK_ID]] * 2)
    with torch.no_grad():
        out = decoder(tokens)
    programs = {
        SHERPA_DECODER: write_down(decoder, (tokens,), DECODER_NAMES, (BATCH,)),
        SHERPA_JOINER: write_down(Join(head), (torch.randn_like(out), out), JOINER_NAMES, (BATCH, BATCH)),
    }
    sizes = {"context_size": str(context_size(head)), "vocab_size": str(model.tokenizer.vocab_size)}
    helper.set_model_props(programs[SHERPA_DECODER], sizes)
    helper.set_model_props(programs[SHERPA_JOINER], {"joiner_dim": str(out.shape[1])})
    return programs


def stateless_encoder(encoder: "ModelProto", model: Model) -> "ModelProto":
    """Return the encoder's program in sherpa-onnx's form.

    The program takes energies (B, T, F), which it normalises, and returns the joiner's input (B, T', J) and lengths.
    """
    from onnx import helper

    program = with_normalization(encoder, model)
    outputs = [output for output in program.graph.output if output.name in ENCODER_OUTPUTS]
    del program.graph.output[:]
    program.graph.output.extend(outputs)
    drop_unused(program)
    helper.set_model_props(program, {"model_type": "zipformer2"})
    return program


def whole_outputs(model: Model, opened: "InferenceSession", waveform: Tensor) -> tuple[Tensor, Tensor]:
    """Encode a recording in one pass."""
    lengths = torch.tensor([model.features.num_frames(len(waveform))])
    out, _ = run(opened, model.features.energies(waveform)[None], lengths)
    return out, head_of(model).joiner.of_frames(model(model.features(waveform)[None], lengths).out)


WHOLE = EncoderProgram(SHERPA_ENCODER, (ZIPFORMER_INPUTS, ENCODER_OUTPUTS), whole_outputs)


@torch.inference_mode()
def difference(
    model: Model, files: Mapping[str, Path], audio: Mapping[str, Tensor], encoder: EncoderProgram = WHOLE
) -> ProgramDifference:
    """Compare the outputs of the three programs with the outputs of the model.

    The encoder is compared in all frames of each recording. The decoder and the joiner are compared in the first frames
    of the last recording.

    Args:
        model: torch model.
        files: files of the programs, by name.
        audio: waveforms (S,) by name.
        encoder: program of the encoder.
    """
    opened = session(files[encoder.file], *encoder.names)
    decoder, joiner = session(files[SHERPA_DECODER], *DECODER_NAMES), session(files[SHERPA_JOINER], *JOINER_NAMES)
    head = head_of(model)
    found: dict[str, float] = {}
    frames = torch.zeros(1, 1, 1)
    for name, waveform in audio.items():
        out, frames = encoder.outputs(model, opened, waveform)
        found[f"{encoder.file}, {name}"] = float((out - frames).abs().max())
    join, state, token = Join(head), head.predictor.initial_state(1), BLANK_ID
    context = [NO_TOKEN] * context_size(head)
    for number, frame in enumerate(frames[0][:NUM_FRAMES]):
        context = [*context[1:], token]
        [out] = run(decoder, torch.tensor([context]))
        read, state = head.predictor.step(torch.tensor([token]), state)
        before = head.joiner.of_tokens(read)
        [log_probs] = run(joiner, frame[None], out)
        expected = join(frame[None], before)
        largest = max(float((out - before).abs().max()), float((log_probs - expected).abs().max()))
        found[f"{SHERPA_DECODER}, {SHERPA_JOINER}, after {number} tokens"] = largest
        token = 1 + int(expected[0, 1:].argmax())
    where = max(found, key=found.__getitem__)
    return ProgramDifference(found[where], where, 0, len(audio))
