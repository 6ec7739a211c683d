"""Runs a step in a process of its own, with a time limit."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from asr.core.cli.command import complain
from asr.errors import InputError
from benchmarks.gpu.steps import LOG, Step

DONE = "done"


def run(step: Step, folder: Path, seconds: float, device: str) -> str:
    """Run a step in a process of its own; after `seconds`, kill it and its child processes. Return the outcome."""
    # CUDA needs new processes. On a CPU, forking a process that has imported torch starts faster.
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
            except ProcessLookupError:  # the process has not created its session yet
                process.kill()
            process.join()


def start(module: str, arguments: Sequence[str], log: str) -> None:
    """Run a module's `main` in this process, as leader of a new session; write its output to the file `log`."""
    os.setsid()
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # no output is lost if the step is killed
    sys.argv = [module, *arguments]
    try:
        sys.exit(importlib.import_module(module).main(list(arguments)))
    except InputError as error:
        complain(str(error))
        sys.exit(1)


def _outcome(status: int | None, seconds: float) -> str:
    if status is None:
        return f"stopped after its time limit of {seconds:.0f} s"
    return f"failed with status {status}" if status else DONE
