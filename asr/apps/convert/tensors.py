"""Tensors by name, from an untrusted file in the format of safetensors or `torch.save`."""

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PosixPath
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from asr.base.system.learnt import MAX_BYTES
from asr.core.checkpoint.bundle import why_not_loaded
from asr.errors import InputError, reason_of, shown

COUNTER = ".num_batches_tracked"  # counter of a batch norm; needed only if the norm's momentum is null
ZIP = b"PK"


def load_tensors(content: bytes, name: str, entry: str | None = None) -> dict[str, Tensor]:
    """Read tensors by name from an untrusted file, without running code; the size of the file bounds the memory.

    Args:
        content: content of the file, which has the format of safetensors or of `torch.save`.
        name: name of the file, for errors.
        entry: entry of a checkpoint of `torch.save` that holds the tensors; other entries may hold numbers, texts and
            paths. None: the file holds only the tensors.
    """
    if not content.startswith(ZIP):
        return _load_safetensors(content, name)
    return load_entry(content, name, entry).tensors


class SavedTensors(NamedTuple):
    """The tensors of a checkpoint, and numbers beside them.

    Args:
        tensors: the tensors of an entry, by name.
        numbers: whole numbers beside the entry.
    """

    tensors: dict[str, Tensor]
    numbers: list[int]


def load_entry(content: bytes, name: str, entry: str | None, numbers: Sequence[str] = ()) -> SavedTensors:
    """Read tensors by name, and whole numbers beside them, from an untrusted checkpoint of `torch.save`.

    Args:
        content: content of the file.
        name: name of the file, for errors.
        entry: entry of the checkpoint that holds the tensors; None: the file holds only the tensors.
        numbers: names of other entries.
    """
    _check_zip(content, name)
    paths: list[Any] = [] if entry is None else [PosixPath]  # of the training, among its settings
    try:
        with torch.serialization.safe_globals(paths):
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of almost any class for a damaged file
        raise InputError(
            f"{name} must hold only tensors, and nothing that could run code; {why_not_loaded(error)}."
        ) from None
    whole: list[int] = []
    if entry is not None:
        for needed in (entry, *numbers):
            if not isinstance(state, Mapping) or needed not in state:
                raise InputError(f"{name} must be a checkpoint with the entry {needed!r}; it has none.")
        for needed in numbers:
            if type(state[needed]) is not int or state[needed] < 1:
                raise InputError(f"{name}: {needed} must be a positive whole number; got {shown(state[needed])}.")
            whole.append(state[needed])
        state = state[entry]
    tensors = dict(_tensors(state, name))
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > 2 * len(content):  # a small file can have large tensors if they share their elements
        raise InputError(
            f"{name} must contain the numbers of all its tensors; "
            f"the tensors take {size:,} bytes, more than twice the size of the file."
        )
    return SavedTensors(tensors, whole)


def _load_safetensors(content: bytes, name: str) -> dict[str, Tensor]:
    try:
        return dict(_tensors(load(content), name))
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        must = f"{name} must be a file written by torch.save (torch 1.6 or later) or by safetensors"
        raise InputError(f"{must}; it is damaged or another kind of file: {reason_of(error)}.") from None


def _check_zip(content: bytes, name: str) -> None:
    """Check that a zip file is not compressed and unpacks to no more bytes than it has; torch unpacks it later."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise InputError(f"{name} must be a file written by torch.save; it is damaged: {reason_of(error)}.") from None
    is_packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
    if is_packed or sum(record.file_size for record in records) > len(content):
        raise InputError(f"{name} must be a file written by torch.save, not compressed; this file is compressed.")
    if any(record.filename.endswith("data.pkl") and record.file_size > MAX_BYTES for record in records):
        raise InputError(
            f"{name} must hold tensors by name, and at most {MAX_BYTES:,} bytes of other data; it holds more."
        )


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{name} must hold tensors by name; got {shown(type(state).__name__)}.")
    for key, tensor in state.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_quantized
        if is_plain and tensor.device.type != "cpu":  # for example the device meta, whose tensors have no values
            raise InputError(f"{name} must hold the numbers of its tensors; {shown(key)} has none.")
        if not isinstance(key, str) or not is_plain or not (tensor.is_floating_point() or key.endswith(COUNTER)):
            raise InputError(
                f"{name} must hold tensors of floating-point numbers by name; {shown(key)} is not such a tensor."
            )
        yield key, tensor.detach()
