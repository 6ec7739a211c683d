"""The conditions of a benchmark: machine, its peak rates, and versions of installed packages."""

import argparse
import contextlib
import datetime
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import torch

from asr.errors import InputError
from benchmarks.race import race

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


PACKAGES = (
    *("torch", "torchaudio", "lightning", "transformers", "nemo_toolkit", "speechbrain", "espnet"),
    *("lhotse", "webdataset", "datasets", "kaldi-native-fbank", "camel-kenlm", "flashlight-text", "pyctcdecode"),
)


TURNS = 7  # number of timed matrix products and copies; the median is reported


class Machine(NamedTuple):
    """A device's name and peak rates.

    Args:
        name: name of the processor and its number of threads, or name of the GPU.
        matmul: floating-point operations per second of a large matrix product. On a processor: per second of CPU time,
            which is the rate of one core and does not depend on the number of idle cores.
        copy: bytes read and written per second by a large copy; on a processor: per second of CPU time.
    """

    name: str
    matmul: float
    copy: float


def synchronizer(device: str) -> Callable[[], object]:
    """Return a function that waits until the device has finished its queued work."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def check_available(device: str) -> None:
    """Check that this machine has the device, which is cpu or cuda."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device must be available; got {device}, but this machine has no CUDA device. Use cpu.")


def measure(device: str = "cpu", dtype: torch.dtype = torch.float32, turns: int = TURNS) -> Machine:
    """Measure the rates of matrix products in `dtype` and of copies: on a CPU per CPU second, on a GPU per second."""
    check_available(device)
    on_card = device.startswith("cuda")
    size, elements = (8192, 2**28) if on_card else (1536, 2**25)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(elements, device=device)
    product, target = left @ right, torch.empty_like(source)
    kinds = {"matmul": lambda: torch.mm(left, right, out=product), "copy": lambda: target.copy_(source)}
    medians = race(kinds, turns=turns, times=5, synchronize=synchronizer(device))
    seconds = {kind: turn.seconds if on_card else turn.cpu_seconds for kind, turn in medians.items()}
    return Machine(
        torch.cuda.get_device_name() if on_card else _processor(),
        2 * size**3 / seconds["matmul"],
        2 * source.nbytes / seconds["copy"],
    )


def about(options: argparse.Namespace, measured: Machine | None = None) -> dict[str, object]:
    """Print the date, machine, versions and measured rates; return these and the command-line options."""
    day, name = datetime.date.today().isoformat(), measured.name if measured else _processor()
    print(f"{day}, {name}, {torch.get_num_threads()} threads", flush=True)
    print(", ".join(f"{package} {number}" for package, number in versions().items()), flush=True)
    rates = {"matmul": measured.matmul, "copy": measured.copy} if measured else {}
    if measured:
        print(f"matrix products {measured.matmul / 1e9:.0f} GFLOP/s, copies {measured.copy / 1e9:.1f} GB/s")
    print(flush=True)
    settings = {key: str(value) for key, value in vars(options).items()}
    return {"date": day, "name": name, **rates, **versions(), "options": settings}


def versions() -> dict[str, str]:
    """Return the versions of the installed packages among PACKAGES."""
    numbers = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def in_fresh_process(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Call a function in a new process, whose memory measurements start from zero."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments, **options).result()


def peak_memory_reset(process: int | str = "self") -> float:
    """Reset a process's peak of resident memory to its current size; return that size in bytes."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    return peak_memory(process)


def peak_memory(process: int | str = "self") -> float:
    """Return a process's peak of resident memory since `peak_memory_reset`, in bytes; Linux only."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} x {os.cpu_count()}"
