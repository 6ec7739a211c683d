"""A model written down as ONNX programs: of features, of waveforms, and as sherpa-onnx wants it."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from asr.errors import InputError
from asr.features.slaney_fbank import SlaneyFbank
from asr.onnx.front_end import FrontEnd
from asr.recognition.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

OPSET = 18
FEATURES, FEATURE_LENGTHS = "features", "feature_lengths"
WAVEFORMS, SAMPLE_COUNTS = "waveforms", "sample_counts"
SHERPA_INPUTS = ("audio_signal", "length")
LOG_PROBS, LENGTHS = "log_probs", "log_probs_lengths"
MOST_BYTES = 2**31 - 1  # of an ONNX file
FRONT_END = "front_end/"  # what the names in one begin with
EXAMPLE_FRAMES, EXAMPLE_SAMPLES = 333, 54_321  # of what a program is written down by; it is for any number


class Net(nn.Module):
    """Features (B, T, F), feature_lengths (B,) to log_probs (B, T', V), log_probs_lengths (B,).

    Raises:
        InputError: the model has no head that gives those.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        if model.head.frame_head is None:
            must = "an exported model must have a head that says which token each frame spells (CTC)"
            raise InputError(f"{must}; {type(model.head).__name__} does not, and other heads are not exported yet.")
        self.encode = cast(nn.Module, model)
        self.head = model.head.frame_head

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """As above."""
        encoded = self.encode(features, feature_lengths)
        return self.head.log_probs(encoded.out), encoded.lengths


def export_net(model: Model) -> "ModelProto":
    """Write down a model behind its features: see `Net`.

    Raises:
        InputError: the model cannot be exported, or is too large for a file.
    """
    net = Net(model).eval()
    num_bytes = sum(weight.numel() * weight.element_size() for weight in net.state_dict().values())
    if num_bytes > MOST_BYTES:
        must = f"an exported model must have less than {MOST_BYTES / 2**30:.0f} GiB of weights, as ONNX files do"
        raise InputError(f"{must}; got {num_bytes / 2**30:.1f}.")
    lengths = torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES // 2])
    example = (torch.randn(2, EXAMPLE_FRAMES, model.features.dim), lengths)
    return _export(net, example, {FEATURES: "frames", FEATURE_LENGTHS: None}, (LOG_PROBS, LENGTHS))


def export_front_end(model: Model) -> "ModelProto":
    """Write down a model's features: see `FrontEnd`.

    Raises:
        InputError: they have no form for a batch.
    """
    counts = torch.tensor([EXAMPLE_SAMPLES, EXAMPLE_SAMPLES // 2])
    example = (0.1 * torch.randn(2, EXAMPLE_SAMPLES), counts)
    front_end = FrontEnd(model.features).eval()
    return _export(front_end, example, {WAVEFORMS: "samples", SAMPLE_COUNTS: None}, (FEATURES, FEATURE_LENGTHS))


def joined(front_end: "ModelProto", net: "ModelProto") -> "ModelProto":
    """Put features before a net: waveforms (B, S), sample_counts (B,) to log_probs (B, T', V), log_probs_lengths."""
    from onnx.compose import add_prefix, merge_models

    handed_on = [(FRONT_END + name, name) for name in (FEATURES, FEATURE_LENGTHS)]
    program = merge_models(add_prefix(front_end, FRONT_END), net, handed_on)
    del program.opset_import[1:]  # the same of both
    _rename(program, {FRONT_END + name: name for name in (WAVEFORMS, SAMPLE_COUNTS)})
    return _plain(program)


def for_sherpa(net: "ModelProto", model: Model) -> "ModelProto":
    """Write down a net as sherpa-onnx reads one of NeMo's: features (B, F, T), and what it asks of the metadata."""
    from onnx import ModelProto, helper

    program = ModelProto()
    program.CopyFrom(net)
    _rename(program, dict(zip((FEATURES, FEATURE_LENGTHS), SHERPA_INPUTS, strict=True)))
    signal = program.graph.input[0]
    shape = signal.type.tensor_type.shape.dim
    shape[1].CopyFrom(shape[2])
    shape[2].dim_param = "frames"
    for node in program.graph.node:
        node.input[:] = [FEATURES if name == signal.name else name for name in node.input]
    program.graph.node.insert(0, helper.make_node("Transpose", [signal.name], [FEATURES], FEATURES, perm=[0, 2, 1]))
    metadata = {
        "model_type": "EncDecCTCModelBPE",
        "vocab_size": str(model.tokenizer.vocab_size),
        "subsampling_factor": str(model.encoder.stride),
        "normalize_type": "per_feature",
    }
    helper.set_model_props(program, metadata)
    return program


def is_for_sherpa(features: Mapping[str, Any]) -> bool:
    """Tell by their config whether features are those that sherpa-onnx computes for a model of NeMo's."""
    name, normalize = SlaneyFbank.__module__.rpartition(".")[2], features["normalize"]["name"]
    made = {"sample_rate": 16000, "num_mel_bins": 80, "frame_length_seconds": 0.025, "frame_shift_seconds": 0.01}
    return (
        features["name"] == name
        and normalize == "utterance_cmvn"
        and all(features[key] == value for key, value in made.items())
    )


def _export(
    net: nn.Module, example: tuple[Tensor, Tensor], inputs: Mapping[str, str | None], outputs: Sequence[str]
) -> "ModelProto":
    """Write down a net of a batch and its lengths; `inputs` by name, with that of their second dimension."""
    dynamic = tuple({0: "batch"} if second is None else {0: "batch", 1: second} for second in inputs.values())
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            net,
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
    for part in (program, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for output in graph.output:
        _name_dimensions(output)
    return program


def _name_dimensions(output: "ValueInfoProto") -> None:
    """Name the second dimension of an output for what it is, and not how it is computed."""
    dimensions = output.type.tensor_type.shape.dim
    if len(dimensions) > 1:
        dimensions[1].dim_param = f"{output.name}_frames"


def _rename(program: "ModelProto", names: Mapping[str, str]) -> None:
    """Call inputs by other names, wherever they are named."""
    for value in program.graph.input:
        value.name = names.get(value.name, value.name)
    for node in program.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
