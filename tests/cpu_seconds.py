"""A plugin of pytest that prints the CPU time of a run, which other work on the machine changes less than wall time."""

import multiprocessing
import os
import resource
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

FROM_WORKERS = pytest.StashKey[list[float]]()


def cpu_seconds() -> float:
    """Return the user and system time of this process, of its children that have ended, and of its fork server."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in used)
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)  # type: ignore[attr-defined]
    if server is not None and multiprocessing.current_process().name == "MainProcess":
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own, and that of its children
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FROM_WORKERS] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[FROM_WORKERS].append(node.workeroutput["cpu_seconds"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = cpu_seconds()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    seconds = sum(config.stash[FROM_WORKERS]) or cpu_seconds()
    terminalreporter.write_line(
        f"{seconds:.0f} CPU seconds (user + system) of the tests and of the processes they started"
    )
