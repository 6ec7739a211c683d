"""Export of a model as ONNX programs that take features or waveforms, and as programs for sherpa-onnx."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asr.apps.export.program_weights import MIN_BYTES
from asr.base.onnx.names import FEATURES, FRONT_END_INPUTS, NET_INPUTS, NET_OUTPUTS
from asr.components.features.batched.front_end import FrontEnd
from asr.core.recognition.model import Model
from asr.errors import InputError
from asr.interfaces import Encoded

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

OPSET = 18
SHERPA_INPUTS = ("audio_signal", "length")
BATCH = {0: "batch"}  # the first dimension of all inputs, which may have any size
OUT_FRAMES = "encoder_frames"  # name of the dimension of output frames
PREFIX = "front_end/"  # prefix of all names in the front-end's program
EXAMPLE_FRAMES, EXAMPLE_SAMPLES = 333, 54_321  # lengths of the example inputs; a program accepts any length


class Net(nn.Module):
    """Maps features (B, T, F) and feature_lengths (B,) to outputs (B, T', ...) and lengths (B,).

    Args:
        model: model with the encoder.
        outputs: names of the outputs, ending with the lengths.
        of_encoded: computes the outputs, without the lengths, from what the encoder returns.
    """

    def __init__(
        self, model: Model, outputs: tuple[str, ...], of_encoded: Callable[[Encoded], tuple[Tensor, ...]]
    ) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs
        self.of_encoded = of_encoded

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs and the lengths."""
        encoded = self.model(features, feature_lengths)
        return *self.of_encoded(encoded), encoded.lengths


def ctc_net(model: Model) -> Net:
    """Return the network whose output is log_probs (B, T', V)."""
    head = model.head.frame_head
    if head is None:
        must = "an exported model must have a CTC head, or a transducer and a decoder that uses it"
        given = f"{type(model.head).__name__} has no CTC head, and heads of other kinds cannot be exported yet"
        raise InputError(f"{must}; {given}.")
    return Net(model, NET_OUTPUTS, lambda encoded: (head.log_probs(encoded.out),))


def export_net(net: Net, data: Path) -> "ModelProto":
    """Export the part of a model that follows the features; its weights are written to the file `data`."""
    lengths = torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES // 2])
    example = (torch.randn(2, EXAMPLE_FRAMES, net.model.features.dim), lengths)
    return write_down(net, example, (NET_INPUTS, net.outputs), (BATCH | {1: "frames"}, BATCH), data)


def export_front_end(model: Model) -> "ModelProto":
    """Export a model's features as a `FrontEnd`."""
    counts = torch.tensor([EXAMPLE_SAMPLES, EXAMPLE_SAMPLES // 2])
    example = (0.1 * torch.randn(2, EXAMPLE_SAMPLES), counts)
    names, dynamic = (FRONT_END_INPUTS, NET_INPUTS), (BATCH | {1: "samples"}, BATCH)
    return write_down(FrontEnd(model.features), example, names, dynamic)


def joined(front_end: "ModelProto", net: "ModelProto", inputs: tuple[str, str]) -> "ModelProto":
    """Join a program that computes features to one that takes them.

    Args:
        front_end: program whose outputs are features and feature_lengths.
        net: program whose inputs they are.
        inputs: names of the inputs of `front_end`, which are those of the joined program.
    """
    from onnx.compose import add_prefix, merge_graphs
    from onnx.helper import make_model

    connections = [(PREFIX + name, name) for name in NET_INPUTS]
    graph = merge_graphs(add_prefix(front_end, PREFIX).graph, net.graph, connections)
    # onnx.compose.merge_models makes the same program, but also checks it, and would not find the data file.
    producer = {"producer_name": "onnx.compose.merge_models", "producer_version": "1.0", "model_version": 1}
    program = make_model(graph, opset_imports=net.opset_import, ir_version=net.ir_version, domain="", **producer)
    _rename(program, {PREFIX + name: name for name in inputs})
    return _plain(program)


def take_sherpa_inputs(program: "ModelProto") -> None:
    """Change a program's input to sherpa-onnx's features, (B, F, T), with NeMo's names."""
    from onnx import helper

    _rename(program, dict(zip(NET_INPUTS, SHERPA_INPUTS, strict=True)))
    signal = program.graph.input[0]
    shape = signal.type.tensor_type.shape.dim
    shape[1].CopyFrom(shape[2])
    shape[2].dim_param = "frames"
    for node in program.graph.node:
        node.input[:] = [FEATURES if name == signal.name else name for name in node.input]
    program.graph.node.insert(0, helper.make_node("Transpose", [signal.name], [FEATURES], FEATURES, perm=[0, 2, 1]))


def drop_unused(program: "ModelProto") -> None:
    """Remove nodes and weights that no output needs, such as those of a CTC head."""
    needed = {output.name for output in program.graph.output}
    nodes = []
    for node in reversed(program.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    weights = [tensor for tensor in program.graph.initializer if tensor.name in needed]
    nodes.reverse()
    for field, parts in ((program.graph.node, nodes), (program.graph.initializer, weights)):
        copies = [type(part)() for part in parts]
        for copy, part in zip(copies, parts, strict=True):
            copy.CopyFrom(part)
        del field[:]
        field.extend(copies)


def write_down(
    net: nn.Module,
    example: tuple[Any, ...],
    names: tuple[Sequence[str], Sequence[str]],
    dynamic: tuple[Any, ...],
    data: Path | None = None,
) -> "ModelProto":
    """Export a network.

    Args:
        net: network whose inputs are tensors, or a list of tensors.
        example: example of the inputs.
        names: names of the inputs, and of the outputs.
        dynamic: for each input, the names of the dimensions that may have any size.
        data: file to write the weights to; None: the program contains its weights.
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
    assert program is not None  # with dynamo=True torch returns a program
    if data is not None:
        from onnx_ir.external_data import unload_from_model

        unload_from_model(program.model, data.parent, data.name, size_threshold_bytes=MIN_BYTES)
    return _plain(program.model_proto)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's messages about its internals and missing packages, which do not concern the user."""
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
    """Remove metadata, which contains lines of asr's code and paths of this machine."""
    graph = program.graph
    del graph.value_info[:]  # shapes of intermediate results, which would be wrong after quantization
    for part in (program, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for output in graph.output:
        _name_dimensions(output)
    return program


def _name_dimensions(output: "ValueInfoProto") -> None:
    """Give the second dimension of an output a meaningful name, if it may have any size."""
    dimensions = output.type.tensor_type.shape.dim
    if len(dimensions) > 1 and dimensions[1].dim_param:
        dimensions[1].dim_param = OUT_FRAMES


def _rename(program: "ModelProto", names: Mapping[str, str]) -> None:
    """Rename inputs, and all references to them."""
    for value in program.graph.input:
        value.name = names.get(value.name, value.name)
    for node in program.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
