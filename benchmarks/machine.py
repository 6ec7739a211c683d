"""What a benchmark's figures hang on: the machine, its rates, of which rows are shares, and what is installed."""

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

Given = ParamSpec("Given")
Found = TypeVar("Found")


PACKAGES = (
    *("torch", "torchaudio", "lightning", "transformers", "nemo_toolkit", "speechbrain", "espnet"),
    *("lhotse", "webdataset", "datasets", "kaldi-native-fbank", "flashlight-text", "pyctcdecode"),
)


TURNS = 7  # of a product and a copy


class Machine(NamedTuple):
    """A device's name and rates.

    Args:
        name: of the processor and its threads, or of the card.
        matmul: operations a second of a large matrix product, two for each product and sum; on a processor of one
            core, by CPU time, so that a share of it does not hang on how many cores were free.
        copy: bytes read and written a second by a large copy; the same.
    """

    name: str
    matmul: float
    copy: float


def synchronizer(device: str) -> Callable[[], object]:
    """Give what waits until the device has done all that it was given."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def measure(device: str = "cpu", dtype: torch.dtype = torch.float32, turns: int = TURNS) -> Machine:
    """Measure a device's rates for products of `dtype`: by CPU time, or on a card by the clock; medians of `turns`."""
    on_card = device.startswith("cuda")
    if on_card and not torch.cuda.is_available():
        raise InputError(f"--device must be there; got {device}, and no CUDA device is here. Take cpu.")
    size, elements = (8192, 2**28) if on_card else (1536, 2**25)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(elements, device=device)
    product, target = left @ right, torch.empty_like(source)
    kinds = {"matmul": lambda: torch.mm(left, right, out=product), "copy": lambda: target.copy_(source)}
    taken = race(kinds, turns=turns, times=5, synchronize=synchronizer(device))
    seconds = {kind: turn.seconds if on_card else turn.cpu_seconds for kind, turn in taken.items()}
    return Machine(
        torch.cuda.get_device_name() if on_card else _processor(),
        2 * size**3 / seconds["matmul"],
        2 * source.nbytes / seconds["copy"],
    )


def about(given: argparse.Namespace, measured: Machine | None = None) -> dict[str, object]:
    """Print and return the date, the machine, its rates where they are measured, versions, and the options."""
    day, name = datetime.date.today().isoformat(), measured.name if measured else _processor()
    print(f"{day}, {name}, {torch.get_num_threads()} threads", flush=True)
    print(", ".join(f"{package} {found}" for package, found in versions().items()), flush=True)
    rates = {"matmul": measured.matmul, "copy": measured.copy} if measured else {}
    if measured:
        print(f"matrix products {measured.matmul / 1e9:.0f} GFLOP/s, copies {measured.copy / 1e9:.1f} GB/s")
    print(flush=True)
    options = {key: str(value) for key, value in vars(given).items()}
    return {"date": day, "name": name, **rates, **versions(), "options": options}


def versions() -> dict[str, str]:
    """Find the versions of what is compared, as far as it is installed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def in_fresh_process(function: Callable[Given, Found], *arguments: Given.args, **options: Given.kwargs) -> Found:
    """Call a function where no memory has been used before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments, **options).result()


def peak_memory_reset(process: int | str = "self") -> float:
    """Forget a process's highest resident memory so far; return the present one, in bytes."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    return peak_memory(process)


def peak_memory(process: int | str = "self") -> float:
    """Return the highest resident memory since `peak_memory_reset`, in bytes; Linux only."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} x {os.cpu_count()}"
