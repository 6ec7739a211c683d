"""Programs made smaller: 8-bit integers, or half-precision numbers, in place of float32."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from asr.onnx.names import FRONT_END

if TYPE_CHECKING:
    from onnx import ModelProto

QUANTIZED = ("MatMul", "Gemm")  # convolutions of integers are twice as slow as those of float32


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
                net, path, op_types_to_quantize=list(QUANTIZED), per_channel=True, weight_type=QuantType.QInt8
            )
            return onnx.load(path)
    finally:
        logger.setLevel(level)


def to_fp16(net: "ModelProto") -> "ModelProto":
    """Keep weights in half precision; inputs and outputs stay float32."""
    import warnings

    from onnx import ModelProto
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = ModelProto()
    copy.CopyFrom(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are rounded to the largest or the least there is
        converted: ModelProto = convert_float_to_float16(copy, keep_io_types=True)
    return converted


def smaller(parts: "Mapping[str, ModelProto]", name: str) -> "dict[str, ModelProto]":
    """Make all programs smaller but the features, whose numbers have no room for it.

    Args:
        parts: by the names of their files.
        name: one of `QUANTIZATIONS`.
    """
    return {file: part if file == FRONT_END else QUANTIZATIONS[name](part) for file, part in parts.items()}


QUANTIZATIONS: "dict[str, Callable[[ModelProto], ModelProto]]" = {"int8": to_int8, "fp16": to_fp16}
