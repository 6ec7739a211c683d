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

from benchmarks.null_gpu import NULL_GPU

ROOT = Path(__file__).parents[2]
OUTSIDE = "outside of asr"
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemsetAsync", "cudaGraphLaunch")  # names in a profile


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


def is_null() -> bool:
    """Whether this process uses `benchmarks.null_gpu`."""
    return NULL_GPU in os.environ


def asking() -> str:
    """Return the innermost function of asr that is running, as file.function."""
    running = (frame.f_code for frame, _ in traceback.walk_stack(None))
    counted = takewhile(lambda code: code is not count.__code__, running)
    own = (code for code in counted if Path(code.co_filename).is_relative_to(ROOT / "asr"))
    return next((f"{Path(code.co_filename).stem}.{code.co_name}" for code in own), OUTSIDE)


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
