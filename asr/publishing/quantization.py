"""Programs made smaller: 8-bit integers, or half-precision numbers, in place of float32."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from asr.onnx.names import FRONT_END

if TYPE_CHECKING:
    from onnx import ModelProto

QUANTIZED = ("MatMul", "Gemm")  # convolutions of integers are twice as slow as those of float32


DEVIATIONS = 3  # from zero: what counts as the range of a number of variance one
MIGRATION = 0.7  # of the range of what comes, into the weights; 0.3 to 1 did about as well on 40 training utterances


def levelled(net: "ModelProto") -> "ModelProto":
    """Make the numbers behind each LayerNorm of like size, and let the weights that they meet make up for it.

    A tensor has one scale for its 8-bit numbers, so a few large ones cost all others their precision. The products
    stay the same. *Source*: SmoothQuant, arXiv:2211.10438, equation 4; but how large a number becomes is read from the
    LayerNorm, behind whose division all have variance one, so that no audio is asked for. A LayerNorm that anything but
    products by weights of their own reads stays as it is.
    """
    from onnx import ModelProto
    from onnx.numpy_helper import from_array, to_array

    copy = ModelProto()
    copy.CopyFrom(net)
    weights = {tensor.name: tensor for tensor in copy.graph.initializer}
    outputs = {output.name for output in copy.graph.output}
    readers = defaultdict(list)
    for node in copy.graph.node:
        for name in node.input:
            readers[name].append(node)
    for norm in copy.graph.node:
        if norm.op_type != "LayerNormalization" or len(norm.input) < 3:
            continue
        products = readers[norm.output[0]]
        factors = [product.input[1] for product in products if product.op_type == "MatMul"]
        changed = [*norm.input[1:3], *factors]
        own = len(set(changed)) == len(changed) and all(name in weights and len(readers[name]) == 1 for name in changed)
        if not products or len(factors) < len(products) or not own or norm.output[0] in outputs:
            continue
        scale, bias, *matrices = (to_array(weights[name]) for name in changed)
        if any(matrix.ndim != 2 for matrix in matrices):
            continue
        range_in = DEVIATIONS * np.abs(scale) + np.abs(bias)
        range_of_weights = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
        if not (range_in.all() and range_of_weights.all()):
            continue
        size = range_in**MIGRATION / range_of_weights ** (1 - MIGRATION)
        level = [scale / size, bias / size, *(matrix * size[:, None] for matrix in matrices)]
        for name, values in zip(changed, level, strict=True):
            weights[name].CopyFrom(from_array(values.astype(np.float32), name))
    return copy


def to_int8(net: "ModelProto") -> "ModelProto":
    """Multiply by 8-bit weights, with a scale for each output; what they multiply is scaled as it comes.

    What has no weights, and convolutions, stay as they are.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it recommends a preparation that changes nothing here
    try:
        with TemporaryDirectory() as folder:
            path = Path(folder, "int8.onnx")
            quantize_dynamic(
                levelled(net), path, op_types_to_quantize=list(QUANTIZED), per_channel=True, weight_type=QuantType.QInt8
            )
            return onnx.load(path)
    finally:
        logger.setLevel(level)


def to_fp16(net: "ModelProto") -> "ModelProto":
    """Keep weights in half precision; inputs and outputs stay float32."""
    import warnings

    from onnx import ModelProto
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    copy = ModelProto()
    copy.CopyFrom(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are rounded to the largest or the least there is
        converted: ModelProto = convert_float_to_float16(copy, keep_io_types=True)
    # The conversion puts the casts of the inputs after the nodes that read them; ONNX asks for the order of reading.
    OnnxModel(converted).topological_sort()
    return converted


def smaller(parts: "Mapping[str, ModelProto]", name: str) -> "dict[str, ModelProto]":
    """Make all programs smaller but the features, whose numbers have no room for it.

    Args:
        parts: by the names of their files.
        name: one of `QUANTIZATIONS`.
    """
    return {file: part if file == FRONT_END else QUANTIZATIONS[name](part) for file, part in parts.items()}


QUANTIZATIONS: "dict[str, Callable[[ModelProto], ModelProto]]" = {"int8": to_int8, "fp16": to_fp16}
