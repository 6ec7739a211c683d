"""Writing files so that whatever happens leaves the old one or the new one, and never a part of either."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"  # the end of a temporary file's name, which begins with a dot


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path`, see it safely on the disk, and put it in the place of what was there.

    Args:
        path: of the file.
        write: writes the content to the open file that it is given.

    Raises:
        OSError: it could not be written, say because the disk is full; what was at `path` is untouched.
    """
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_whole_text(path: Path, text: str) -> None:
    """Write a text file in the same way, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def sync_folder(folder: Path) -> None:
    """See the names in a folder safely on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for file in folder.glob(f".*{UNFINISHED}"):
        if file.is_file():
            file.unlink(missing_ok=True)
