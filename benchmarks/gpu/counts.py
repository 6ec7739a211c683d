"""Counts of kernel launches, waits for the device, and memory, on a GPU or on `benchmarks.null_gpu`."""

import ctypes
import os
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.null_gpu import NULL_GPU

ROOT = Path(__file__).parents[2]
OUTSIDE = "outside of asr"
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemsetAsync", "cudaGraphLaunch")  # names in a profile


# Operations that return numbers, or shapes that depend on numbers: on a GPU each waits for all pending operations.
ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "is_pinned")
METHODS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class Counts(NamedTuple):
    """What a function does with the device.

    Args:
        launches: number of kernels, and of fills and copies within the device.
        waits: number of waits by the innermost function of asr, as file.function; those of a backward pass are outside
            of asr, because torch reports them at its end.
        peak: bytes of tensors at the peak.
    """

    launches: int
    waits: Counter[str]
    peak: int


class Questions(TorchDispatchMode):
    """Counts, on a CPU and on any thread, what would make the program wait for a GPU, by the function of asr that asks.

    These are the operations in ASKING and those that index by a mask, and calls of METHODS. Waits within an operation,
    as in torch's CTC loss, are not visible on a CPU. `num_operations` counts all operations, except views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_operations, self._is_asked = 0, False
        self._methods = {name: getattr(torch.Tensor, name) for name in METHODS}

    def __enter__(self) -> "Questions":
        """Begin to count."""
        for name in METHODS:
            setattr(torch.Tensor, name, self._asking(self._methods[name]))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)
        for name, method in self._methods.items():
            setattr(torch.Tensor, name, method)

    def _asking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(tensor: torch.Tensor, *arguments: Any) -> Any:
            if self._is_asked:
                return method(tensor, *arguments)
            self.counts[asking()] += 1
            self._is_asked = True  # the operations of a method are the same question
            try:
                return method(tensor, *arguments)
            finally:
                self._is_asked = False

        return asked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation; torch calls this for each operation."""
        name = func.overloadpacket.__name__
        self.num_operations += not func.is_view
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if (name in ASKING or by_mask) and not self._is_asked:
            self.counts[asking()] += 1
        return func(*args, **(kwargs or {}))


def is_null() -> bool:
    """Whether this process uses `benchmarks.null_gpu`."""
    return NULL_GPU in os.environ


def asking() -> str:
    """Return the innermost function of asr that is running, as file.function.

    A list comprehension is not a function of its own since Python 3.12.
    """
    running = (frame.f_code for frame, _ in traceback.walk_stack(None))
    counted = takewhile(lambda code: code is not count.__code__, running)
    own = (code for code in counted if Path(code.co_filename).is_relative_to(ROOT / "asr"))
    code = next(own, None)
    if code is None:
        return OUTSIDE
    function = code.co_qualname.removesuffix(".<locals>.<listcomp>").rpartition(".")[2]
    return f"{Path(code.co_filename).stem}.{function}"


def count(work: Callable[[], object]) -> Counts:
    """Run a function once, and count."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    waits = Counter[str]()

    def on_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            waits[asking()] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = on_warning
        torch.cuda.set_sync_debug_mode("warn")
        try:
            launches = (_launches_of_library if is_null() else _launches_in_profile)(work)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Counts(launches, waits, torch.cuda.max_memory_allocated())


def _launches_of_library(work: Callable[[], object]) -> int:
    library = ctypes.CDLL(os.environ[NULL_GPU])
    library.null_gpu_reset()
    work()
    return int(library.null_gpu_launches())


def _launches_in_profile(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    return sum(event.count for event in profiler.key_averages() if event.key.startswith(LAUNCHES))
