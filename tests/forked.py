"""Processes forked from a server that has imported torch and the commands, which saves seconds per process."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "tests.forked",
        *("asr.train", "asr.plan", "asr.transcribe", "asr.evaluate", "asr.compare", "asr.convert", "asr.serve"),
        *("asr.training.fit", "asr.training.trainer", "asr.run.preparation", "asr.run.outcome"),  # commands import late
        *("asr.bulk.job", "asr.bulk.transcription", "asr.bulk.report", "asr.interchange.models"),
        *("asr.evaluation.utterances", "asr.evaluation.comparison"),
    ]
)
PATIENCE = 120  # seconds, for operations that should take a few


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
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def run_module(
    module: str,
    *arguments: object,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    method: str = "fork",
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module`; return its exit status, output and errors.

    Args:
        module: name of a module of this checkout.
        arguments: its command-line arguments.
        cwd: its working directory.
        environment: additional environment variables.
        method: Python's default method of starting processes; fork: as Python up to 3.13 has it on Linux.
    """
    command = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "stdout"), Path(folder, "stderr")
        process = SERVER.Process(
            target=_run_module, args=(command, cwd, {**os.environ, **(environment or {})}, output, errors, method)
        )
        process.start()
        process.join(PATIENCE)
        is_hanging = process.is_alive()
        process.kill()
        process.join()
        assert not is_hanging, f"{command} did not end"
        assert process.exitcode is not None
        stdout, stderr = (path.read_text(errors="surrogateescape") for path in (output, errors))
    return subprocess.CompletedProcess(command, process.exitcode, stdout, stderr)
