"""A step in a process of its own, with a time limit."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from asr.cli.command import complain
from asr.errors import InputError
from benchmarks.gpu.steps import LOG, Step

DONE = "done"


def run(step: Step, folder: Path, seconds: float, device: str) -> str:
    """Run a step in a process of its own, and end it and all that it started when its time is over."""
    # A GPU needs fresh processes; on a processor copies of one that has imported torch start sooner.
    context: Any = get_context("spawn" if device == "cuda" else "forkserver")
    if device == "cpu":
        context.set_forkserver_preload(["lightning.pytorch", "benchmarks.gpu.recognition", "benchmarks.gpu.training"])
    arguments = [argument.replace("{folder}", str(folder)) for argument in step.arguments]
    process = context.Process(target=start, args=(step.module, arguments, str(folder / LOG)))
    process.start()
    try:
        process.join(seconds)
        return _outcome(process.exitcode, seconds)
    finally:
        if process.is_alive():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not begun
                process.kill()
            process.join()


def start(module: str, arguments: Sequence[str], log: str) -> None:
    """Run a module's `main` in this process, in a session of its own; what it prints goes to a log."""
    os.setsid()
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a step may be killed
    sys.argv = [module, *arguments]
    try:
        sys.exit(importlib.import_module(module).main(list(arguments)))
    except InputError as error:
        complain(str(error))
        sys.exit(1)


def _outcome(status: int | None, seconds: float) -> str:
    if status is None:
        return f"stopped at its limit of {seconds:.0f} s"
    return f"failed with status {status}" if status else DONE
