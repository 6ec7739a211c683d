"""What the machine can do at most: the rates that a benchmark's rows are shares of."""

import argparse
import datetime
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import torch

from benchmarks.race import race

Given = ParamSpec("Given")
Found = TypeVar("Found")


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


def measure(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Machine:
    """Measure a device's rates by CPU time, or on a card by the clock; print them with today's date and versions."""
    on_card = device.startswith("cuda")
    size, elements = (8192, 2**28) if on_card else (1536, 2**25)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(elements, device=device)
    product, target = left @ right, torch.empty_like(source)
    kinds = {"matmul": lambda: torch.mm(left, right, out=product), "copy": lambda: target.copy_(source)}
    taken = race(kinds, turns=7, times=5, synchronize=synchronizer(device))
    seconds = {kind: turn.seconds if on_card else turn.cpu_seconds for kind, turn in taken.items()}
    machine = Machine(
        torch.cuda.get_device_name() if on_card else f"{_processor()}, {torch.get_num_threads()} threads",
        2 * size**3 / seconds["matmul"],
        2 * source.nbytes / seconds["copy"],
    )
    print(f"{datetime.date.today()}, {machine.name}, torch {torch.__version__}, {str(dtype).removeprefix('torch.')}")
    per = "" if on_card else " a core"
    print(f"matrix products {machine.matmul / 1e9:.0f} GFLOP/s{per}, copies {machine.copy / 1e9:.1f} GB/s{per}\n")
    return machine


def about(given: argparse.Namespace) -> dict[str, object]:
    """Name what figures hang on where no rate of the machine is measured: its name, the date, the options."""
    day, options = datetime.date.today().isoformat(), {key: str(value) for key, value in vars(given).items()}
    facts = {"date": day, "name": _processor(), "torch": version("torch"), "options": options}
    print(f"{day}, {facts['name']}, torch {facts['torch']}\n", flush=True)
    return facts


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
