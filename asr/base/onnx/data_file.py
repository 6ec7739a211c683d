"""The data file of a large program: the file beside it that contains its weights.

An untrusted program could name any file as the place of a weight, so programs are checked before ONNX Runtime opens
them.
"""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.base.onnx.names import DATA
from asr.errors import InputError, how_to_install, reason_of, shown

if TYPE_CHECKING:
    from onnx import TensorProto

LOCATION = "location"  # the key of a tensor's external data whose value is the name of the file


def check_data_file(program: Path | bytes) -> None:
    """Check that a program reads weights only from its own data file, which is beside it.

    Args:
        program: an ONNX file, or its contents; contents have no data file.

    Raises:
        InputError: the program names another file, or its data file is absent, or it cannot be parsed.
    """
    if not _has_location(program):
        return
    file, expected = (program, DATA.get(program.name)) if isinstance(program, Path) else (None, None)
    entries = (entry for tensor in tensors(_parsed(program)) for entry in tensor.external_data)
    named = {entry.value for entry in entries if entry.key == LOCATION}
    if strange := sorted(named - {expected}):
        must = f"{file or 'the program'}: must read weights from {expected or 'no other file'}"
        raise InputError(f"{must}; got {shown(strange[0])}.")
    if file and named and not (data := file.with_name(named.pop())).is_file():
        raise InputError(f"{file}: must be beside the file with its weights, {data.name}; there is none. Copy it, too.")


def tensors(message: Any) -> "Iterator[TensorProto]":
    """Yield the tensors in any part of a program: weights, attributes of nodes, inner graphs, functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from tensors(part)


def _has_location(program: Path | bytes) -> bool:
    """Whether the bytes of a program contain the key that every reference to a file has.

    Without this key a program is not parsed, which would need the package onnx, and memory for its weights.
    """
    if isinstance(program, bytes):
        return LOCATION.encode() in program
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(LOCATION.encode()) >= 0
    except (OSError, ValueError):  # ONNX Runtime names what is wrong; mmap raises ValueError for an empty file
        return False


def _parsed(program: Path | bytes) -> Any:
    try:
        from onnx import ModelProto
    except ImportError:
        must = "a program with a data file needs the package onnx, to check the name of the file; it is not installed"
        raise InputError(f"{must}. {how_to_install('onnx')}") from None
    try:
        return ModelProto.FromString(program if isinstance(program, bytes) else program.read_bytes())
    except Exception as error:  # classes of protobuf, which is not imported here
        name = program if isinstance(program, Path) else "the program"
        raise InputError(f"{name}: must be a program in ONNX's format; {reason_of(error)}.") from None
