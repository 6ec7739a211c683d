"""Where the weights of programs are: in a data file while programs are made, then in each program that is small enough.

Programs that are made from the same program share its data file, so none of them is in memory with its weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.onnx.data_file import tensors
from asr.base.onnx.names import DATA, DATA_FILES
from asr.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

MAX_BYTES = 2**31 - 1  # maximum size of an ONNX file
MIN_BYTES = 1024  # a data file has the tensors that are larger; a program contains the other tensors


def moved_out(program: "ModelProto", data: Path) -> "ModelProto":
    """Move the weights of a program to the file `data`; return the program without them."""
    from onnx import ModelProto
    from onnx.external_data_helper import set_external_data

    with data.open("wb") as file:
        for weight in program.graph.initializer:
            weight.ClearField("data_location")  # onnx.load writes its default
            if (size := len(weight.raw_data)) > MIN_BYTES:
                set_external_data(weight, data.name, file.tell(), size)
                file.write(weight.raw_data)
                weight.ClearField("raw_data")
    copy = ModelProto()
    copy.CopyFrom(program)  # protobuf frees the memory of the weights only with the whole program
    return copy


def write(programs: "Mapping[str, ModelProto]", folder: Path) -> dict[str, Path]:
    """Write programs, with their weights if a program has at most `MAX_BYTES`; return the paths of all files by name.

    Args:
        programs: programs by the names of their files.
        folder: folder to write to, which has the data files of the programs.
    """
    files = {}
    for name, program in programs.items():
        files[name] = folder / name
        if num_bytes(program) <= MAX_BYTES:
            program = _with_weights(program, folder)
        elif name not in DATA or program.ByteSize() > MAX_BYTES:
            must = f"{name}: an ONNX file must have at most {MAX_BYTES:,} bytes"
            raise InputError(f"{must}; it has {num_bytes(program):,}. Only an encoder's weights can be in a data file.")
        else:
            files[DATA[name]] = folder / DATA[name]
        files[name].write_bytes(program.SerializeToString())
    return {name: files[name] for name in (*programs, *DATA_FILES) if name in files}


def num_bytes(program: "ModelProto") -> int:
    """Return the size of a program with its weights, at most a few bytes per tensor more than its file has."""
    weights = program.graph.initializer
    outside = (int(entry.value) for weight in weights for entry in weight.external_data if entry.key == "length")
    return program.ByteSize() + sum(outside)


def _with_weights(program: "ModelProto", folder: Path) -> "ModelProto":
    """Return a copy of a program that contains its weights."""
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    copy = ModelProto()
    copy.CopyFrom(program)
    for tensor in tensors(copy):
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(folder))
            tensor.ClearField("data_location")  # its default, as in a program that never had a data file
    return copy
