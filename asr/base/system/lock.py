"""Lock of a folder, so that one process at a time writes into it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asr.errors import InputError


@contextmanager
def alone_in(output_dir: Path) -> Iterator[None]:
    """Lock an existing folder against other processes.

    Raises:
        InputError: another process has locked it.
    """
    folder = os.open(output_dir, os.O_RDONLY)
    try:
        _lock(folder, output_dir)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, output_dir: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        must = f"{output_dir} must be written by one process at a time; another one is writing there"
        raise InputError(f"{must}. Wait until it has ended, and run the same command again.") from None
    except OSError:  # a file system without locks
        return
