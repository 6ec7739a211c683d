"""Processes forked from a server that has imported torch and the commands, which saves seconds per process."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.conftest import PATIENCE, ROOT

SERVER = multiprocessing.get_context("forkserver")
MODULES = sorted((ROOT / "asr").rglob("[!_]*.py"))  # commands import most of them late, and each process would again
SERVER.set_forkserver_preload(
    ["tests.forked", *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES)]
)


def process(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Return a process that will be forked from the server and call `target(*arguments)`."""
    return SERVER.Process(target=_of_test, args=(os.environ.get("PYTEST_CURRENT_TEST", ""), target, arguments))


def _of_test(test: str, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    os.environ["PYTEST_CURRENT_TEST"] = test  # the server has the name of the test that started it
    if (coverage := sys.modules.get("coverage")) and (measured := coverage.Coverage.current()):
        measured.switch_context(test)
    target(*arguments)


def write_output_to(output: Path, errors: Path | None = None) -> None:
    """Redirect this process's stdout and stderr to a file, or to one file each."""
    for path, descriptors in ((output, (1,) if errors else (1, 2)), (errors, (2,))):
        if path is not None:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor in descriptors:
                os.dup2(file, descriptor)
            os.close(file)


def _run_module(
    arguments: list[str], cwd: Path, environment: Mapping[str, str], output: Path, errors: Path, method: str
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    write_output_to(output, errors)
    multiprocessing.set_start_method(method, force=True)
    # runpy warns about modules that the server has already imported.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    sys.argv, sys.orig_argv = arguments, [sys.executable, "-m", *arguments]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


class Command:
    """A running `python -m module`, with the methods of subprocess.Popen.

    Args:
        module: name of a module of this checkout.
        arguments: its command-line arguments.
        stdout: file for its output.
        stderr: file for its errors.
        cwd: its working directory.
        environment: additional environment variables.
        method: Python's default method of starting processes; fork: as Python up to 3.13 has it on Linux.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        stdout: Path,
        stderr: Path,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        method: str = "fork",
    ) -> None:
        command = [module, *map(str, arguments)]
        variables = {**os.environ, **(environment or {})}
        self.process = process(_run_module, command, cwd, variables, stdout, stderr, method)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the process; return its exit status. Kill it, and fail, if it does not end."""
        self.process.join(timeout)
        is_hanging = self.process.is_alive()
        self.process.kill()
        self.process.join()
        assert not is_hanging, "the process did not end"
        assert self.process.exitcode is not None
        return self.process.exitcode


def run_module(module: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m module`, with the options of Command; return its exit status, output and errors."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "stdout"), Path(folder, "stderr")
        status = Command(module, *arguments, stdout=output, stderr=errors, **options).wait()
        stdout, stderr = (path.read_text(errors="surrogateescape") for path in (output, errors))
    return subprocess.CompletedProcess([module, *map(str, arguments)], status, stdout, stderr)
