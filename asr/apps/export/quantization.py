"""Quantization of programs: 8-bit integers or half precision in place of float32."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from asr.apps.export.program_weights import moved_out
from asr.base.onnx.names import DATA, FRONT_END

if TYPE_CHECKING:
    from onnx import ModelProto

# Kinds of nodes to quantize. Convolutions take twice as long with integers as with float32.
QUANTIZED = ("MatMul", "Gemm")


DEVIATIONS = 3  # assumed range of normalised numbers, in standard deviations
# Exponent alpha of the SmoothQuant paper: 0 equalises the ranges of the weights, 1 equalises the ranges of the inputs.
# Values from 0.3 to 1 gave similar results on 40 training utterances.
MIGRATION = 0.7


def levelled(net: "ModelProto") -> "ModelProto":
    """Equalise the ranges of each LayerNorm's outputs, and scale the weights of the next matrix products inversely.

    A tensor has one scale for its 8-bit numbers, so a few large numbers reduce the precision of all other numbers. The
    results of the matrix products do not change. *Source*: SmoothQuant, arXiv:2211.10438, equation 4. *Differs from
    the paper*: the range is computed from the weights of the LayerNorm, whose normalised input has variance one, so no
    audio is needed. A LayerNorm is changed only if nothing but matrix products uses its output, and nothing else uses
    the weights of these products.
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


def to_int8(net: Path) -> "ModelProto":
    """Quantize the weights of matrix products to 8 bits, with one scale per output; inputs are scaled at run time.

    Matrix products without weights or with a matrix for each head, and convolutions, are not changed. Weights use 7 of
    the 8 bits, because with 8 bits onnxruntime's sums overflow on x86 processors without VNNI instructions: on such a
    processor the English model made 45 errors in the 1,009 words of dev-mini with 8 bits, 36 with 7 bits, and 37 in
    float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # suppress advice to preprocess the model, which has no effect here
    try:
        with TemporaryDirectory() as folder:
            source, path = Path(folder, "levelled.onnx"), Path(folder, "int8.onnx")
            program = levelled(onnx.load(net))
            # Such as the encoded positions of each head, if the number of frames is fixed: onnxruntime does not run it.
            batched = {tensor.name for tensor in program.graph.initializer if len(tensor.dims) > 2}
            excluded = [node.name for node in program.graph.node if batched & set(node.input)]
            onnx.save(program, source, save_as_external_data=True)
            quantize_dynamic(
                source,
                path,
                op_types_to_quantize=list(QUANTIZED),
                nodes_to_exclude=excluded,
                per_channel=True,
                reduce_range=True,
                weight_type=QuantType.QInt8,
                use_external_data_format=True,
            )
            return onnx.load(path)
    finally:
        logger.setLevel(level)


def to_fp16(net: Path) -> "ModelProto":
    """Convert weights to half precision; inputs and outputs stay float32."""
    import warnings

    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about numbers beyond the range of half precision
        converted: ModelProto = convert_float_to_float16(str(net), keep_io_types=True)
    # The conversion puts the casts of the inputs after the nodes that read them; ONNX requires topological order.
    OnnxModel(converted).topological_sort()
    return converted


def smaller(
    parts: "Mapping[str, ModelProto]", files: Mapping[str, Path], name: str, folder: Path
) -> "dict[str, ModelProto]":
    """Quantize the parts of a model except the features, which need full precision.

    Args:
        parts: programs by the names of their files.
        files: files of the programs in float32; a part without a file is left out.
        name: a key of `QUANTIZATIONS`.
        folder: folder for the data files of the quantised programs.
    """
    made = {}
    for file, part in parts.items():
        if file == FRONT_END:
            made[file] = part
        elif file in files:
            program = QUANTIZATIONS[name](files[file])
            made[file] = moved_out(program, folder / DATA[file]) if file in DATA else program
    return made


QUANTIZATIONS: "dict[str, Callable[[Path], ModelProto]]" = {"int8": to_int8, "fp16": to_fp16}
