"""What a process asks of Linux and of OpenMP: when to end, to keep its memory, how its threads wait."""

import ctypes
import os
import resource
import select
import signal
import sys

INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as shells count
SPINS = 1000  # some microseconds
PR_SET_PDEATHSIG = 1  # linux/prctl.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def die_with_parent(parent_id: int) -> None:
    """Ask Linux to kill this process when its parent is killed; end at once where the parent is gone already.

    Args:
        parent_id: number of the parent process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_id:
            os._exit(0)


def keep_memory() -> None:
    """Ask glibc to keep what is freed, for a process that will soon want as much again: a training step after another.

    Memory that goes back and forth is cleared by Linux page by page each time: 5 to 18 % of a step on a processor.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):  # not in musl
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**30)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def reader_has_gone() -> bool:
    """Flush standard output; True where nobody reads it any more, `| head` say: what is left of it is dropped.

    Python would try again to write it when it ends, and report an error.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in pipe.poll(0))  # where each line is written at once
    except OSError:  # it is no file, in a test say
        return False


def end_without_reader() -> None:
    """Have this process end quietly when nobody reads what it prints any more: one that does nothing but print."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def spin_briefly() -> None:
    """Let OpenMP's threads wait for each other awake for microseconds, then asleep; must come before torch is imported.

    To sleep at once makes a step of a small net a fifth longer; to stay awake for as long as OpenMP likes makes it
    half as long again where other work has the cores (benchmarks/README.md). `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT`
    stay where they are set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def peak_memory() -> int:
    """Return the bytes of memory that this process has had at most, mapped files included."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
