"""Locks, so that one process at a time writes a file or into a folder; a killed process holds none."""

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from asr.errors import InputError

LOCK = ".lock"  # file by which a folder is locked; it stays
NO_LOCKS = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system without locks


@contextmanager
def locked(path: Path, seconds: float = -1.0) -> Iterator[None]:
    """Lock a file, which is created; on a file system without locks, do nothing.

    Args:
        path: path of the file.
        seconds: maximum time to wait for another process; -1: until it has ended.

    Raises:
        Timeout: another process still has the lock.
        OSError: the file cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone_in(output_dir: Path) -> Iterator[None]:
    """Lock an existing folder against other processes, by its file LOCK.

    Raises:
        InputError: another process has locked it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(output_dir / LOCK, seconds=0))
        except Timeout:
            must = f"{output_dir} must be written by one process at a time; another one is writing there"
            raise InputError(f"{must}. Wait until it has ended, and run the same command again.") from None
        yield
