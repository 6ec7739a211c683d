"""A model written down as ONNX programs: of features, of waveforms, and as sherpa-onnx wants it."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asr.errors import InputError
from asr.features.batched.front_end import FrontEnd
from asr.features.slaney_fbank import SlaneyFbank
from asr.interfaces import Encoded
from asr.onnx.names import FEATURES, FRONT_END_INPUTS, NET_INPUTS, NET_OUTPUTS
from asr.recognition.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

OPSET = 18
SHERPA_MELS = 80  # mel bins that sherpa-onnx computes for CTC
SHERPA_INPUTS = ("audio_signal", "length")
BATCH = {0: "batch"}  # the first dimension of all that goes in, which may be any number
OUT_FRAMES = "encoder_frames"  # what the number of frames that come out is called
MOST_BYTES = 2**31 - 1  # of an ONNX file
PREFIX = "front_end/"  # of the names in a front-end
EXAMPLE_FRAMES, EXAMPLE_SAMPLES = 333, 54_321  # of what a program is written down by; it is for any number


class Net(nn.Module):
    """Features (B, T, F), feature_lengths (B,) to what a program gives of frames, (B, T', ...) each, and lengths (B,).

    Args:
        model: whose encoder runs.
        outputs: names of the outputs, the lengths last.
        of_encoded: the encoder's output to all outputs but the lengths.
    """

    def __init__(
        self, model: Model, outputs: tuple[str, ...], of_encoded: Callable[[Encoded], tuple[Tensor, ...]]
    ) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs
        self.of_encoded = of_encoded

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, ...]:
        """As above."""
        encoded = self.model(features, feature_lengths)
        return *self.of_encoded(encoded), encoded.lengths


def ctc_net(model: Model) -> Net:
    """Make the net that gives log_probs (B, T', V).

    Raises:
        InputError: the model has no head that gives those.
    """
    head = model.head.frame_head
    if head is None:
        must = "an exported model must have a CTC head, or a decoder of its transducer"
        raise InputError(f"{must}; {type(model.head).__name__} has none, and other heads are not exported yet.")
    return Net(model, NET_OUTPUTS, lambda encoded: (head.log_probs(encoded.out),))


def export_net(net: Net) -> "ModelProto":
    """Write down a model behind its features.

    Raises:
        InputError: it is too large for a file.
    """
    num_bytes = sum(weight.numel() * weight.element_size() for weight in net.state_dict().values())
    if num_bytes > MOST_BYTES:
        must = f"an exported model must have less than {MOST_BYTES / 2**30:.0f} GiB of weights, as ONNX files do"
        raise InputError(f"{must}; got {num_bytes / 2**30:.1f}.")
    lengths = torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES // 2])
    example = (torch.randn(2, EXAMPLE_FRAMES, net.model.features.dim), lengths)
    return write_down(net, example, (NET_INPUTS, net.outputs), (BATCH | {1: "frames"}, BATCH))


def export_front_end(model: Model) -> "ModelProto":
    """Write down a model's features: see `FrontEnd`.

    Raises:
        InputError: they have no form for a batch.
    """
    counts = torch.tensor([EXAMPLE_SAMPLES, EXAMPLE_SAMPLES // 2])
    example = (0.1 * torch.randn(2, EXAMPLE_SAMPLES), counts)
    names, dynamic = (FRONT_END_INPUTS, NET_INPUTS), (BATCH | {1: "samples"}, BATCH)
    return write_down(FrontEnd(model.features), example, names, dynamic)


def joined(front_end: "ModelProto", net: "ModelProto") -> "ModelProto":
    """Put features before a net: waveforms (B, S), sample_counts (B,) to what the net gives."""
    from onnx.compose import add_prefix, merge_models

    handed_on = [(PREFIX + name, name) for name in NET_INPUTS]
    program = merge_models(add_prefix(front_end, PREFIX), net, handed_on)
    del program.opset_import[1:]  # the same of both
    _rename(program, {PREFIX + name: name for name in FRONT_END_INPUTS})
    return _plain(program)


def for_sherpa(net: "ModelProto", model: Model) -> "ModelProto":
    """Return a CTC program as sherpa-onnx reads one of NeMo's, with the metadata that it asks for."""
    from onnx import ModelProto, helper

    program = ModelProto()
    program.CopyFrom(net)
    take_sherpa_inputs(program)
    metadata = {
        "model_type": "EncDecCTCModelBPE",
        "vocab_size": str(model.tokenizer.vocab_size),
        "subsampling_factor": str(model.encoder.stride),
        "normalize_type": "per_feature",
    }
    helper.set_model_props(program, metadata)
    return program


def take_sherpa_inputs(program: "ModelProto") -> None:
    """Have a program take features as sherpa-onnx gives them, (B, F, T), under NeMo's names."""
    from onnx import helper

    _rename(program, dict(zip(NET_INPUTS, SHERPA_INPUTS, strict=True)))
    signal = program.graph.input[0]
    shape = signal.type.tensor_type.shape.dim
    shape[1].CopyFrom(shape[2])
    shape[2].dim_param = "frames"
    for node in program.graph.node:
        node.input[:] = [FEATURES if name == signal.name else name for name in node.input]
    program.graph.node.insert(0, helper.make_node("Transpose", [signal.name], [FEATURES], FEATURES, perm=[0, 2, 1]))


def is_for_sherpa(features: Mapping[str, Any], is_transducer: bool) -> bool:
    """Tell by their config whether features equal those that sherpa-onnx computes for a NeMo model.

    It reads the number of mel bins from a transducer's program; for CTC it has 80.
    """
    name, normalize = SlaneyFbank.__module__.rpartition(".")[2], features["normalize"]["name"]
    made = {"sample_rate": 16000, "frame_length_seconds": 0.025, "frame_shift_seconds": 0.01}
    return (
        features["name"] == name
        and (is_transducer or features["num_mel_bins"] == SHERPA_MELS)
        and normalize == "utterance_cmvn"
        and all(features[key] == value for key, value in made.items())
    )


def write_down(
    net: nn.Module,
    example: tuple[Any, ...],
    names: tuple[Sequence[str], Sequence[str]],
    dynamic: tuple[Any, ...],
) -> "ModelProto":
    """Write down a net.

    Args:
        net: what it takes is tensors, or a list of them.
        example: of what it takes.
        names: of its inputs, and of its outputs.
        dynamic: of what it takes, which dimensions may be any number, and their names.
    """
    inputs, outputs = names
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            net.eval(),
            example,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=dynamic,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None  # as it is with dynamo
    return _plain(program.model_proto)


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch says of its own parts, and of packages that it does without, is not for whoever exports."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _plain(program: "ModelProto") -> "ModelProto":
    """Leave out what is not computed with: lines of our code, and where it lies on this machine."""
    graph = program.graph
    del graph.value_info[:]  # shapes, which quantization changes and does not look at
    for part in (program, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for output in graph.output:
        _name_dimensions(output)
    return program


def _name_dimensions(output: "ValueInfoProto") -> None:
    """Name the second dimension of an output, if it may be any number, for what it is and not how it is computed."""
    dimensions = output.type.tensor_type.shape.dim
    if len(dimensions) > 1 and dimensions[1].dim_param:
        dimensions[1].dim_param = OUT_FRAMES


def _rename(program: "ModelProto", names: Mapping[str, str]) -> None:
    """Call inputs by other names, wherever they are named."""
    for value in program.graph.input:
        value.name = names.get(value.name, value.name)
    for node in program.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
