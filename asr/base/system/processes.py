"""Process settings of Linux and OpenMP: ending with the parent, memory allocation, broken pipes, threads."""

import ctypes
import gc
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as in shells
MAX_WORKERS = 8  # more processes that read audio for one training process use memory and seldom save time
SPINS = 1000  # number of spins before a thread sleeps; they take a few microseconds
PR_SET_PDEATHSIG = 1  # linux/prctl.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MADV_HUGEPAGE = 14  # asm-generic/mman-common.h
HUGE_PAGE = 2**21
RESERVED = (2**29,) * 8  # bytes of blocks, each below the size from which glibc would map it outside of the heap
THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # environment variable of glibc: larger blocks are returned to Linux when freed


def start_method(num_workers: int) -> str | None:
    """Return how `num_workers` worker processes are started; None: there are none.

    Workers are forked whatever Python's default is: they share the manifests' memory with this process, and they end
    with it (`die_with_parent`), which requires that they are its children.
    """
    return "fork" if num_workers else None


def can_fork() -> bool:
    """Return whether a process may fork workers; libraries of macOS fail in forked processes."""
    return sys.platform != "darwin"


def workers_beside(processes: int) -> int:
    """Return the number of workers that suits each of several training processes of this machine.

    The cores that this process may use are divided among the processes. Each keeps one of its cores for itself, and has
    at most MAX_WORKERS workers. There are none where processes cannot fork.

    Args:
        processes: number of training processes on this machine.
    """
    if not can_fork():
        return 0
    return max(0, min(MAX_WORKERS, len(os.sched_getaffinity(0)) // processes - 1))


def die_with_parent(parent_id: int) -> None:
    """Make Linux kill this process when its parent ends; exit at once if the parent has already ended.

    Args:
        parent_id: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_id:
            os._exit(0)


def keep_memory() -> None:
    """Make glibc keep freed memory, because all training steps allocate similar amounts.

    Otherwise Linux clears every page that is allocated again, which takes 5 to 18 % of a step on a CPU. Memory that
    glibc keeps becomes fragmented, so the peak is higher (`python -m benchmarks.training_memory`). If the user has set
    THRESHOLD, this function does nothing.
    """
    if THRESHOLD in os.environ:
        return
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):  # not in musl
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**30)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, -1)  # never


def use_huge_pages() -> None:
    """Ask Linux for pages of 2 MB for the memory that is allocated next; call `keep_memory` before.

    With pages of 4 KB, a step on a CPU takes up to 13 % longer, because their addresses must be looked up more often
    (`python -m benchmarks.pages`). RESERVED is added to the heap as addresses, which take no memory until they are
    used. There is no effect where /sys/kernel/mm/transparent_hugepage/enabled is not madvise: with always, Linux does
    the same without being asked. This function does nothing if the user has set THRESHOLD, or if the addresses of this
    process are limited (`ulimit -v`).
    """
    if THRESHOLD in os.environ or sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"):
        return
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.madvise.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], [ctypes.c_void_p]
    blocks = [(libc.malloc(size), size) for size in RESERVED]
    for block, size in blocks:
        if block is not None:  # else Linux grants no more addresses
            start = -(-block // HUGE_PAGE) * HUGE_PAGE
            libc.madvise(start, block + size - start, MADV_HUGEPAGE)
    for block, _ in blocks:
        libc.free(block)


def return_memory() -> None:
    """Make glibc return freed memory to Linux; otherwise each worker process keeps the memory that it frees."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):  # not in musl
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 2**22)


@contextmanager
def shared_memory() -> Iterator[None]:
    """Let processes that are forked in this context share as much memory as possible with this process.

    First, freed memory is returned to Linux. Then existing objects are excluded from Python's garbage collection,
    because the collector writes to each object that it examines, and Linux would copy the page of memory with the
    object. In the forked processes the objects remain excluded.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):  # not in musl
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        use_huge_pages()  # those that were asked for have been returned


def reader_has_gone() -> bool:
    """Flush standard output; if its reader has ended (`| head`), discard the rest and return True.

    Python would otherwise try to write the rest at exit, and report an error.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        # A flush of an empty buffer reports no error, so poll the pipe for a reader that has ended.
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except OSError:  # stdout is not a file, for example in a test
        return False


def end_without_reader() -> None:
    """Let a broken pipe end this process silently; for processes that only print."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def spin_briefly() -> None:
    """Make waiting OpenMP threads spin for some microseconds, then sleep; call it before torch is imported.

    Sleeping at once makes a step of a small model 20 % longer. OpenMP's default spin time makes it 50 % longer if other
    work uses the cores (benchmarks/README.md). The environment's `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` take
    precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads within the context; None: do not change it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, including mapped files."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory are free for this process: on this machine, in its container, and by its limits.

    Args:
        root: root folder of the system.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (meminfo := root / "proc/meminfo").is_file():  # Linux
        free = 1024 * _number_after("MemAvailable:", meminfo.read_text())
    of_process = resource.getrlimit(resource.RLIMIT_AS)[0]  # ulimit -v
    if of_process != resource.RLIM_INFINITY:
        free = min(free, of_process - _address_space())
    groups = root / "sys/fs/cgroup"
    for limit, usage, cached in (  # of version 2, of version 1
        (groups / "memory.max", groups / "memory.current", "inactive_file"),
        (groups / "memory/memory.limit_in_bytes", groups / "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():  # "max": no limit
            reclaimable = _number_after(f"{cached} ", (limit.parent / "memory.stat").read_text())
            free = min(free, int(text) - int(usage.read_text()) + reclaimable)
    return max(0, free)


def limit_memory(more_bytes: float) -> None:
    """Let this process take only this number of bytes in addition to its present memory; torch then raises an error.

    Without a limit, Linux grants more memory than there is, and kills a process later: this one, if it has the choice.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # not in every container
        Path("/proc/self/oom_score_adj").write_text("1000")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([*limits, _address_space() + int(more_bytes)]), hard))


def _address_space() -> int:
    """Return the size of this process's address space in bytes (VmSize); 0 except on Linux."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.is_file() else 0


def _number_after(name: str, text: str) -> int:
    """Return the number after a name at the beginning of a line; 0 without such a line."""
    values = [line.removeprefix(name).split()[0] for line in text.splitlines() if line.startswith(name)]
    return int(values[0]) if values else 0
