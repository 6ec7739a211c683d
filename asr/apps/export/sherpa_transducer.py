"""A transducer in sherpa-onnx's layout for NeMo's models: encoder, decoder and joiner; the blank is the last token.

*Source*: the parakeet-tdt export scripts and the reader for NeMo transducers in sherpa-onnx 2.0. sherpa-onnx's decoder
is asr's prediction network. It starts with two state tensors of zeros, (L, B, P) each; sherpa-onnx reads their sizes
from the encoder's metadata. sherpa-onnx uses the index of a TDT's duration logit as the duration, so durations must be
0, 1, 2, and so on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asr.apps.export.agreement import EncoderProgram, ProgramDifference
from asr.apps.export.program import BATCH, SHERPA_INPUTS, drop_unused, take_sherpa_inputs, write_down
from asr.apps.export.transducer_programs import Join, head_of
from asr.base.onnx.names import ENCODER_OUT, LENGTHS, SHERPA_DECODER, SHERPA_ENCODER, SHERPA_JOINER
from asr.base.onnx.session import run, session
from asr.core.recognition.model import Model
from asr.interfaces import BLANK_ID, TransducerHead

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

ENCODER_NAMES = (SHERPA_INPUTS, ("outputs", "encoded_lengths"))
DECODER_NAMES = (
    ("targets", "target_length", "states_0", "states_1"),
    ("outputs", "prednet_lengths", "next_states_0", "next_states_1"),
)
JOINER_NAMES = (("encoder_outputs", "decoder_outputs"), ("outputs",))
CHANNELS_FIRST = "sherpa_outputs"


def has_sherpa_durations(head: TransducerHead) -> bool:
    """Whether a transducer has no durations, or durations that sherpa-onnx supports."""
    return head.durations == tuple(range(len(head.durations)))


def tokens_in_order(tokens: Sequence[str]) -> list[str]:
    """Move asr's first token, the blank, to the end."""
    return [*tokens[BLANK_ID + 1 :], tokens[BLANK_ID]]


class SherpaDecoder(nn.Module):
    """A step of a prediction network.

    The inputs are tokens (B, 1) int32, their lengths (B,), and two state tensors, (L, B, P) each. The outputs are the
    joiner's input, (B, J, 1), the unchanged lengths, and the states after the token.
    """

    def __init__(self, head: TransducerHead, vocab_size: int) -> None:
        super().__init__()
        self.head = head
        self.vocab_size = vocab_size

    def forward(
        self, targets: Tensor, target_length: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the joiner's input, the lengths and the states."""
        predictor = self.head.predictor
        tokens = (targets[:, 0].long() + 1) % self.vocab_size  # sherpa-onnx's blank is the last token, asr's is 0
        example = predictor.initial_state(1)
        out, state = predictor.step(tokens, from_sherpa(first, second, example.dim(), example.dtype))
        return self.head.joiner.of_tokens(out)[:, :, None], target_length.clone(), *to_sherpa(state)


class SherpaJoiner(nn.Module):
    """The joiner.

    The inputs are the outputs of the encoder and of the decoder, (B, J, 1) each. The output contains log_probs of V
    tokens and D durations, (B, 1, 1, V + D).
    """

    def __init__(self, head: TransducerHead, vocab_size: int) -> None:
        super().__init__()
        self.join = Join(head)
        self.vocab_size = vocab_size

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        """Return log_probs in sherpa-onnx's order."""
        log_probs = self.join(encoder_outputs[:, :, 0], decoder_outputs[:, :, 0])
        token_log_probs, duration_log_probs = log_probs[:, : self.vocab_size], log_probs[:, self.vocab_size :]
        return torch.cat([token_log_probs[:, 1:], token_log_probs[:, :1], duration_log_probs], dim=1)[:, None, None]


def to_sherpa(state: Tensor) -> tuple[Tensor, Tensor]:
    """Convert a prediction network's state, batch first, to the two tensors (L, B, P) of sherpa-onnx.

    An LSTM uses both tensors. Other networks use only the first; if the state is the last N tokens, the first tensor
    is (N, B, 1).
    """
    if state.dim() == 4:
        first, second = state.permute(1, 2, 0, 3).unbind()
        return first.contiguous(), second.contiguous()
    layers = (state if state.dim() == 3 else state[:, :, None]).transpose(0, 1).float().contiguous()
    return layers, torch.zeros_like(layers)


def from_sherpa(first: Tensor, second: Tensor, num_dims: int, dtype: torch.dtype) -> Tensor:
    """Convert sherpa-onnx's two tensors to a prediction network's state, which has `num_dims` dimensions."""
    if num_dims == 4:
        return torch.stack([first, second]).permute(2, 0, 1, 3)
    layers = (first + 0 * second).transpose(0, 1)  # 0 * second: the export would leave out an unused input
    return (layers if num_dims == 3 else layers[:, :, 0]).to(dtype)


def export_sherpa_head(model: Model) -> "dict[str, ModelProto]":
    """Export the decoder and the joiner; return the programs by file name."""
    head, vocab_size = head_of(model), model.tokenizer.vocab_size
    decoder, joiner = SherpaDecoder(head, vocab_size), SherpaJoiner(head, vocab_size)
    targets = torch.zeros(2, 1, dtype=torch.int32)
    given = (targets, torch.ones(2, dtype=torch.int32), *to_sherpa(head.predictor.initial_state(2)))
    with torch.no_grad():
        out, *_ = decoder(*given)
    layers = {1: "batch"}
    return {
        SHERPA_DECODER: write_down(decoder, given, DECODER_NAMES, (BATCH, BATCH, layers, layers)),
        SHERPA_JOINER: write_down(joiner, (torch.randn_like(out), out), JOINER_NAMES, (BATCH, BATCH)),
    }


def sherpa_encoder(encoder: "ModelProto", model: Model) -> "ModelProto":
    """Return the encoder's program in sherpa-onnx's form.

    The program takes features (B, F, T), returns the joiner's input (B, J, T') and lengths, and has sherpa-onnx's
    metadata.
    """
    from onnx import ModelProto, helper

    program = ModelProto()
    program.CopyFrom(encoder)
    take_sherpa_inputs(program)
    outputs = {output.name: output for output in program.graph.output}
    out, lengths = outputs[ENCODER_OUT], outputs[LENGTHS]
    names = dict(zip((CHANNELS_FIRST, LENGTHS), ENCODER_NAMES[1], strict=True))
    program.graph.node.append(helper.make_node("Transpose", [ENCODER_OUT], [names[CHANNELS_FIRST]], perm=[0, 2, 1]))
    program.graph.node.append(helper.make_node("Identity", [LENGTHS], [names[LENGTHS]]))
    batch, frames, dim = out.type.tensor_type.shape.dim
    shape = [batch.dim_param, dim.dim_value, frames.dim_param]
    first = helper.make_tensor_value_info(names[CHANNELS_FIRST], out.type.tensor_type.elem_type, shape)
    second = helper.make_tensor_value_info(names[LENGTHS], lengths.type.tensor_type.elem_type, [batch.dim_param])
    del program.graph.output[:]
    program.graph.output.extend([first, second])
    drop_unused(program)
    set_metadata(program, model, {"normalize_type": "per_feature"})
    return program


def set_metadata(program: "ModelProto", model: Model, more: dict[str, object]) -> None:
    """Give an encoder's program the metadata that sherpa-onnx requires: those of all encoders, and `more`."""
    from onnx import helper

    layers, _, hidden = to_sherpa(head_of(model).predictor.initial_state(1))[0].shape
    metadata = {
        "model_type": "EncDecRNNTBPEModel",
        "vocab_size": model.tokenizer.vocab_size - 1,  # sherpa-onnx adds the blank
        "subsampling_factor": model.encoder.stride,
        "feat_dim": model.features.dim,
        "pred_rnn_layers": layers,
        "pred_hidden": hidden,
    }
    if head_of(model).durations:
        metadata["url"] = "tdt"  # sherpa-onnx recognises a TDT by this word in the URL
    helper.set_model_props(program, {name: str(value) for name, value in (metadata | more).items()})


def whole_outputs(model: Model, opened: "InferenceSession", waveform: Tensor) -> tuple[Tensor, Tensor]:
    """Encode a recording in one pass."""
    features = model.features(waveform)[None]
    lengths = torch.tensor([features.shape[1]])
    out, _ = run(opened, features.transpose(1, 2), lengths)
    return out.transpose(1, 2), head_of(model).joiner.of_frames(model(features, lengths).out)


WHOLE = EncoderProgram(SHERPA_ENCODER, ENCODER_NAMES, whole_outputs)


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
    names = {encoder.file: encoder.names, SHERPA_DECODER: DECODER_NAMES, SHERPA_JOINER: JOINER_NAMES}
    opened = {name: session(files[name], *names[name]) for name in names}
    worst = ProgramDifference(0.0, "nowhere", 0, len(audio))

    def compare(where: str, *pairs: tuple[Tensor, Tensor]) -> None:
        nonlocal worst
        largest = max(float((left - right).abs().max()) for left, right in pairs)
        if not largest <= worst.largest:
            worst = worst._replace(largest=largest, where=where)

    head = head_of(model)
    frames = torch.zeros(1, 1, 1)
    for name, waveform in audio.items():
        out, frames = encoder.outputs(model, opened[encoder.file], waveform)
        compare(f"{encoder.file}, {name}", (out, frames))
    join, state, token = Join(head), head.predictor.initial_state(1), BLANK_ID
    states: Sequence[Tensor] = to_sherpa(state)
    vocab_size = model.tokenizer.vocab_size
    for number, frame in enumerate(frames[0][:4]):
        targets = torch.tensor([[(token - 1) % vocab_size]], dtype=torch.int32)
        out, _, *states = run(opened[SHERPA_DECODER], targets, torch.ones(1, dtype=torch.int32), *states)
        read, state = head.predictor.step(torch.tensor([token]), state)
        before = head.joiner.of_tokens(read)
        [log_probs] = run(opened[SHERPA_JOINER], frame[None, :, None], out)
        expected = join(frame[None], before)
        ordered = torch.cat([expected[:, 1:vocab_size], expected[:, :1], expected[:, vocab_size:]], dim=1)
        pairs = (out[:, :, 0], before), (log_probs[:, 0, 0], ordered), (states[0], to_sherpa(state)[0])
        compare(f"{SHERPA_DECODER}, {SHERPA_JOINER}, after {number} tokens", *pairs)
        token = 1 + int(expected[0, 1:vocab_size].argmax())
    return worst
