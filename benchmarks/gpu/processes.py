"""Runs steps in processes of their own, with a time limit."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpu.counts import ROOT
from benchmarks.gpu.steps import LOG, Step

DONE = "done"
POLL_SECONDS = 0.05
LARGEST_BADNESS = "1000"  # of /proc/PID/oom_score_adj: if memory runs out, Linux kills such a process first


def run(steps: Mapping[str, Step], output_dir: Path, seconds: float) -> Iterator[tuple[str, str, float]]:
    """Run steps at the same time; after `seconds`, kill the others and their child processes.

    Yields:
        The name of each step, its outcome, and its duration in seconds, in the order in which the steps end.
    """
    begin = time.monotonic()
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, step in steps.items():
            running[name] = start(step, output_dir / name, seconds)
        while running:
            left = begin + seconds - time.monotonic()
            ended = [name for name, process in running.items() if process.poll() is not None or left <= 0]
            for name in ended:
                process = running.pop(name)
                status = process.poll()
                kill(process)
                yield name, _outcome(status, seconds), time.monotonic() - begin
            if not ended:
                time.sleep(min(POLL_SECONDS, left))
    finally:
        for process in running.values():
            kill(process)


def start(step: Step, folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Start a step as leader of a new session, in the checkout; it writes its output to a file in its folder."""
    values = {"{folder}": str(folder.resolve()), "{seconds}": f"{seconds:.0f}"}
    arguments = [values.get(argument, argument) for argument in step.arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # no output is lost if the step is killed
    with open(folder / LOG, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", step.module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env=environment,
        )
    with contextlib.suppress(OSError):  # the process has ended, or there is no such file, or it may not be written
        Path(f"/proc/{process.pid}/oom_score_adj").write_text(LARGEST_BADNESS, encoding="ascii")
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the session that a process leads."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(status: int | None, seconds: float) -> str:
    if status is None:
        return f"stopped after its time limit of {seconds:.0f} s"
    if status < 0:
        cause = ": memory may have run out" if -status == signal.SIGKILL else ""
        return f"ended by {signal.Signals(-status).name}{cause}"
    return f"failed with status {status}" if status else DONE
