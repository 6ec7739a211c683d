"""Atomic writing of files, checks of output paths, and reading of lines with a limited length.

After a failed or killed write, the path has the complete old file or the complete new file. If the path is a link, its
target is replaced; content for a device or a pipe is written directly.
"""

import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import AnyStr, BinaryIO, TextIO

from asr.errors import InputError

UNFINISHED = ".unfinished"  # suffix of a temporary file's name, which begins with a dot
MAX_LINKS = 40  # maximum length of a chain of links, as in Linux
STDOUT = 1
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota exceeded, file too large


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: write it beside `path`, flush it to the disk, rename it. Missing folders are created.

    Args:
        path: path of the file, or of a link, a device or a pipe.
        write: writes the content sequentially to the open file.

    Raises:
        OSError: the write failed, for example because the disk is full or a pipe has no reader; an old file at `path`
            is unchanged.
    """
    if not is_stream(path):
        _replace(real(path), write)
        return
    descriptor = _descriptor(path)
    with open(os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor), "wb") as file:
        write(file)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(path)
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


def write_shared(path: Path, content: bytes, *, is_new: bool = False) -> bool:
    """Write a small file atomically, even if processes of several machines write it at the same time.

    Args:
        path: path of the file, not of a link; its folder must exist.
        content: content of the file.
        is_new: whether to write only if the file does not exist.

    Returns:
        Whether the file was written.

    Raises:
        OSError: the write failed; an old file at `path` is unchanged.
    """
    unfinished = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not is_new:
            os.replace(unfinished, path)
        elif not _linked(unfinished, path):
            return False
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}{UNFINISHED}")


def write_whole_text(path: Path, text: str) -> None:
    """Write a text file like `write_whole`, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe or an open file of this process; False if nothing exists there.

    Raises:
        OSError: the path leads to a folder or into a cycle of links, or permission is denied.
    """
    descriptor = _descriptor(path)
    try:
        mode = path.stat().st_mode if descriptor is None else os.fstat(descriptor).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return descriptor is not None or not stat.S_ISREG(mode)


def _descriptor(path: Path) -> int | None:
    """Return the descriptor of an open file with this path, such as /dev/stdout or a shell's /dev/fd/63; else None.

    The shell may have opened the file for appending (`>> page.html`), so the output must be written to the descriptor.
    """
    own = os.path.realpath("/proc/self/fd")
    for _ in range(MAX_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == own and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


def real(path: str | Path) -> Path:
    """Return the absolute path with all links resolved; for a cycle of links, the path of one of the links."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a cycle


def check_output(option: str, path: Path, example: str, inputs: Iterable[str | Path] = ()) -> None:
    """Check, without writing, that a file can be written at a path.

    Args:
        option: the command's option, for errors.
        path: path of the file, or of a link, a device or a pipe.
        example: an example of a file name, for errors.
        inputs: files that the command reads and must not replace.

    Raises:
        InputError: the path is not writable, or leads to an input.
    """
    if os.path.isdir(path) or not path.name:
        raise InputError(f"{option} must be a file; {str(path)!r} is a folder. Give a name in it, such as {example}.")
    check_apart(option, path, inputs)
    try:
        if is_stream(path):
            if _descriptor(path) is None and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target = real(path)
        folder = next(folder for folder in target.parents if folder.exists())  # missing folders are created later
        if not folder.is_dir():
            raise InputError(f"{option} must be in a folder; {str(path)!r} would be in the file {str(folder)!r}.")
        if not os.access(folder, os.W_OK):
            raise InputError(f"{option} must be in a writable folder; {str(folder)!r} is not.")
        with suppress(FileNotFoundError):
            os.stat(_unfinished(target))  # raises OSError if the name is too long
    except OSError as error:
        raise _unwritable(option, path, error) from None


def check_apart(option: str, path: Path, inputs: Iterable[str | Path]) -> None:
    """Check that an output, a file or a folder, does not replace an input, even if their paths differ.

    Raises:
        InputError: the output is the same file or folder as an input, or a folder that contains an input.
    """
    target = real(path)
    for given in inputs:
        if not (os.path.exists(given) and os.path.exists(path)):
            continue
        if os.path.samefile(path, given) or target in real(given).parents:
            must = f"{option} must not replace the command's inputs; {path} is, or contains, the input {given}"
            raise InputError(f"{must}. Give another name.")


def write_output(option: str, path: Path, text: str) -> None:
    """Write a text to the path of a command's option, like `write_whole`.

    Raises:
        InputError: the write failed.
    """
    try:
        write_whole_text(path, text)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> InputError:
    return InputError(f"{option} must be a writable file; {path}: {error.strerror}.")


def message_stream(*outputs: Path | None) -> TextIO:
    """Return the stream for a command's messages: stdout, or stderr if stdout is one of its outputs."""
    descriptors = [_descriptor(output) for output in outputs if output is not None]
    is_output = any(number is not None and os.path.sameopenfile(number, STDOUT) for number in descriptors)
    return sys.stderr if is_output else sys.stdout


def bounded_lines(readline: Callable[[int], AnyStr], longest: int, where: str) -> Iterator[tuple[str, AnyStr]]:
    """Yield each line with its position, `where:number`; the maximum length of a line bounds the memory.

    Args:
        readline: method of the open text or binary file; its argument is the maximum length to read.
        longest: maximum length of a line, in characters or bytes.
        where: name of the file.

    Raises:
        InputError: a line is longer than `longest`.
    """
    number = 0
    while line := readline(longest + 1):
        number += 1
        if len(line) > longest:
            unit = "characters" if isinstance(line, str) else "bytes"
            raise InputError(f"{where}:{number}: a line must have at most {longest:,} {unit}; this one has more.")
        yield f"{where}:{number}", line


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _linked(unfinished: Path, path: Path) -> bool:
    """Move a file to `path` if nothing exists there; on a file system without hard links, a race is possible."""
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS) or path.exists():
            raise
        os.replace(unfinished, path)
    return True


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of processes that were killed during a write."""
    for file in folder.glob(f".*{UNFINISHED}"):
        if file.is_file():
            file.unlink(missing_ok=True)
