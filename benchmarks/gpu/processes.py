"""Runs steps in processes of their own, with a time limit."""

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from asr.core.cli.command import complain
from asr.errors import InputError
from benchmarks.gpu.steps import LOG, Step

DONE = "done"
LARGEST_BADNESS = "1000"  # of /proc/PID/oom_score_adj: if memory runs out, Linux kills such a process first


def run(steps: Mapping[str, Step], output_dir: Path, seconds: float, device: str) -> Iterator[tuple[str, str, float]]:
    """Run steps at the same time; after `seconds`, kill the others and their child processes.

    Yields:
        The name of each step, its outcome, and its duration in seconds, in the order in which the steps end.
    """
    # CUDA needs new processes. On a CPU, forking a process that has imported torch starts faster.
    context: Any = get_context("spawn" if device == "cuda" else "forkserver")
    if device == "cpu":
        context.set_forkserver_preload(["lightning.pytorch", "benchmarks.gpu.steps"])
    begin = time.monotonic()
    running: dict[str, BaseProcess] = {}
    try:
        for name, step in steps.items():
            folder = output_dir / name
            values = {"{folder}": str(folder), "{seconds}": f"{seconds:.0f}"}
            arguments = [_filled(argument, values) for argument in step.arguments]
            running[name] = context.Process(target=start, args=(step.module, arguments, str(folder / LOG)))
            running[name].start()
        while running:
            left = begin + seconds - time.monotonic()
            first = next(iter(running.values()))
            first.join(min(0.05, max(left, 0)))
            ended = [name for name, process in running.items() if not process.is_alive()]
            for name in ended if left > 0 else list(running):
                process = running.pop(name)
                status = process.exitcode
                _kill(process)
                yield name, _outcome(status, seconds), time.monotonic() - begin
    finally:
        for process in running.values():
            _kill(process)


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        argument = argument.replace(placeholder, value)
    return argument


def _kill(process: BaseProcess) -> None:
    """Kill a process, if it is alive, and all processes of its session."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # all have ended, or the process has not created its session yet
        process.kill()
    process.join()


def start(module: str, arguments: Sequence[str], log: str) -> None:
    """Run a module's `main` in this process, as leader of a new session; write its output to the file `log`."""
    os.setsid()
    with contextlib.suppress(OSError):  # there is no such file, or it may not be written
        Path("/proc/self/oom_score_adj").write_text(LARGEST_BADNESS, encoding="ascii")
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
    if status < 0:
        cause = ": memory may have run out" if -status == signal.SIGKILL else ""
        return f"ended by {signal.Signals(-status).name}{cause}"
    return f"failed with status {status}" if status else DONE
