"""Opening files: one way to write those that a user names, and lines that are only so long.

Whatever happens, what is written to a file leaves the old one or the new one, and never a part of either. A link is
followed, and what it leads to is replaced; a device or a pipe, which has nothing to be replaced, gets what is written.
"""

import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import AnyStr, BinaryIO, TextIO

from asr.errors import InputError

UNFINISHED = ".unfinished"  # the end of a temporary file's name, which begins with a dot
MOST_LINKS = 40  # from one to the next: as Linux follows
STDOUT = 1
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError: the disk, or what a file may hold, is full


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it to `path`; its folder is made if need be.

    Args:
        path: of the file; or of a link to it, a device, or a pipe.
        write: writes the content to the open file that it is given, from its beginning to its end.

    Raises:
        OSError: it could not be written, say because the disk is full, or the reader of a pipe has gone; a file that
            was at `path` is untouched.
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
    """Write a small file, whole or not at all, though processes of other machines may write it at the same time.

    Args:
        path: of the file, no link; its folder must be there.
        content: of the file.
        is_new: write only if there is no such file yet.

    Returns:
        Whether it was written.

    Raises:
        OSError: it could not be written; a file that was at `path` is untouched.
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
    """Write a text file in the same way, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def is_stream(path: Path) -> bool:
    """Tell whether a path leads to a device, a pipe, or an open file of this process, and not to a file, or nothing.

    Raises:
        OSError: it leads to a folder, nowhere for being a circle of links, or where nobody may look.
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
    """The number of the open file that a path stands for, as /dev/stdout and a shell's /dev/fd/63 do.

    It may be a file that the shell has opened (`> page.html`): what is written belongs behind what is there.
    """
    own = os.path.realpath("/proc/self/fd")
    for _ in range(MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == own and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


def real(path: str | Path) -> Path:
    """Return the absolute path behind all links; of links that lead in a circle, one of them."""
    return Path(os.path.realpath(path))  # Path.resolve raises a RuntimeError there


def check_output(option: str, path: Path, example: str, inputs: Iterable[str | Path] = ()) -> None:
    """Check that a file can be written at a path, as far as that can be told without writing it.

    Args:
        option: that names the path, for errors.
        path: of the file, a link to it, a device, or a pipe.
        example: a file name such as the option is for.
        inputs: files that the command reads, which it must not replace.

    Raises:
        InputError: it cannot, or the path leads to an input.
    """
    check_apart(option, path, inputs)
    if os.path.isdir(path) or not path.name:
        raise InputError(f"{option} must be a file; {str(path)!r} is a folder. Give a name in it, such as {example}.")
    try:
        if is_stream(path):
            if _descriptor(path) is None and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        place = real(path)
        folder = next(folder for folder in place.parents if folder.exists())  # the others are made
        if not folder.is_dir():
            raise InputError(f"{option} must be in a folder; {str(path)!r} would lie in the file {str(folder)!r}.")
        if not os.access(folder, os.W_OK):
            raise InputError(f"{option} must be in a folder that can be written to; {str(folder)!r} cannot.")
        _unfinished(place).is_file()  # its name may be too long
    except OSError as error:
        raise _unwritable(option, path, error) from None


def check_apart(option: str, path: Path, inputs: Iterable[str | Path]) -> None:
    """Check that an output would not replace an input, under this name or another.

    Raises:
        InputError: it would.
    """
    if not os.path.isfile(path):
        return
    for given in inputs:
        if os.path.isfile(given) and os.path.samefile(path, given):
            must = f"{option} must be another file than what the command reads; {path} is the input {given}"
            raise InputError(f"{must}. Give another name.")


def write_output(option: str, path: Path, text: str) -> None:
    """Write a text where a user wants it, as `write_whole` does.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        write_whole_text(path, text)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> InputError:
    return InputError(f"{option} must be a file that can be written; {path}: {error.strerror}.")


def message_stream(*outputs: Path | None) -> TextIO:
    """Where a command says what it has done: on standard output, or on standard error if that is one of its outputs."""
    descriptors = [_descriptor(output) for output in outputs if output is not None]
    is_output = any(number is not None and os.path.sameopenfile(number, STDOUT) for number in descriptors)
    return sys.stderr if is_output else sys.stdout


def bounded_lines(readline: Callable[[int], AnyStr], longest: int, where: str) -> Iterator[tuple[str, AnyStr]]:
    """Read a file line by line, each with its place (`where:number`); a line without end would take all memory.

    Args:
        readline: of the open file, of text or of bytes; it is given how much to read at most.
        longest: characters, or bytes, that a line may have.
        where: what the file is called.

    Raises:
        InputError: a line has more.
    """
    number = 0
    while line := readline(longest + 1):
        number += 1
        if len(line) > longest:
            unit = "characters" if isinstance(line, str) else "bytes"
            raise InputError(f"{where}:{number}: a line must have at most {longest:,} {unit}; this one has more.")
        yield f"{where}:{number}", line


def sync_folder(folder: Path) -> None:
    """See the names in a folder safely on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _linked(unfinished: Path, path: Path) -> bool:
    """Give a file its name, if there is none of this name; a file system without links cannot tell, and replaces it."""
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
    """Remove what a process that was killed while it wrote has left."""
    for file in folder.glob(f".*{UNFINISHED}"):
        if file.is_file():
            file.unlink(missing_ok=True)
