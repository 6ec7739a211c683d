"""Reads the files of a folder from an untrusted source into memory."""

from collections.abc import Callable
from pathlib import Path

from asr.base.system.files import real
from asr.base.system.learnt import MAX_BYTES
from asr.errors import InputError


def read_folder(folder: Path, is_wanted: Callable[[str], bool], unbounded: tuple[str, ...]) -> dict[str, bytes]:
    """Read the wanted files of a folder; return their contents by name.

    Args:
        folder: path of the folder.
        is_wanted: selects files by name.
        unbounded: names of files without a size limit.
    """
    files = {}
    for file in sorted(folder.iterdir()):
        if not is_wanted(file.name):
            continue
        if file.is_symlink() and not real(file).is_relative_to(real(folder)):
            raise InputError(f"{folder}: files must be inside the folder; {file.name} is a link to {real(file)}.")
        if not file.is_file():
            raise InputError(f"{folder}: {file.name} must be a file; it is a folder, a device, a pipe, or missing.")
        check_size(folder, file.name, file.stat().st_size, unbounded)
        files[file.name] = file.read_bytes()
    return files


def check_size(path: Path, name: str, size: int, unbounded: tuple[str, ...]) -> None:
    """Check the size of a file."""
    if size > MAX_BYTES and name not in unbounded:
        raise InputError(f"{path}: {name} must have at most {MAX_BYTES:,} bytes; it has {size:,}.")
