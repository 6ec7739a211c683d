"""Real training processes for tests."""

import csv
import itertools
import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import forked
from tests.conftest import PATIENCE
from tests.forked import write_output_to

OF_THE_CLOCK = ("train/audio_seconds_per_second", "train/data_wait", "train/tokens_per_second")


def _train(
    config: dict[str, Any], environment: dict[str, str], output: Path, before: Callable[[], object] | None
) -> None:
    """Run `python -m asr.train` or asr.train_lm from a config that is already composed."""
    os.environ.update(environment)
    # Data-loading workers become children of this process, as in a training run started from a shell.
    multiprocessing.set_start_method("fork", force=True)
    write_output_to(output)
    from asr.core.training.hydra_command import run_job
    from asr.train import train

    if before is not None:
        before()
    run_job(train, config)


def start(
    config: dict[str, Any],
    output: Path,
    *,
    world_size: int = 1,
    before: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[BaseProcess]:
    """Start a training run of one or several processes, as torchrun would.

    Args:
        config: the resolved config.
        output: file for stdout and stderr.
        world_size: number of processes.
        before: called in each process before training, to inject a fault.
        environment: additional environment variables.
    """
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world_size)}
    processes = []
    for rank in range(world_size):
        ranks = {**rendezvous, "LOCAL_RANK": str(rank), "NODE_RANK": "0"} if world_size > 1 else {}
        variables = {"OMP_NUM_THREADS": "1", **ranks, **(environment or {})}
        process = forked.process(_train, config, variables, output, before)
        process.start()
        processes.append(process)
    return processes


def finish(processes: list[BaseProcess]) -> int:
    """Wait for all processes; return the exit status of the first process. Fail if a process hangs."""
    end = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    hanging = [process.pid for process in processes if process.is_alive()]
    kill(processes)
    assert not hanging, f"processes {hanging} did not end"
    assert processes[0].exitcode is not None
    return processes[0].exitcode


def die_at_save(number: int) -> None:
    """Let this process kill itself after it has saved its checkpoint for the `number`-th time; for `start`."""
    from asr.core.training.checkpointing import Saving

    save, saves = Saving._save, itertools.count(1)

    def save_and_die(*arguments: Any) -> None:
        save(*arguments)
        if next(saves) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Saving._save = save_and_die  # type: ignore[method-assign]


def kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def wait_for(condition: Callable[[], bool], processes: list[BaseProcess]) -> bool:
    """Wait until a condition is true; return False if the first process ends before that."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if not processes[0].is_alive():
            return False
        assert time.monotonic() < end, "the condition did not become true, and the process did not end"
        time.sleep(0.002)
    return True


def steps_logged(run_dir: Path) -> int:
    """Count the optimizer steps in metrics.csv."""
    try:
        with (run_dir / "metrics.csv").open(newline="") as file:
            return max((int(row["step"]) for row in csv.DictReader(file) if row["step"].isdigit()), default=0)
    except (FileNotFoundError, KeyError, AttributeError):
        return 0


def resumptions(run_dir: Path) -> list[tuple[int, int]]:
    """Return (step, batch) of each resumption in the log."""
    path = run_dir / "train.log"
    log = path.read_text() if path.is_file() else ""
    resumed = re.findall(r"resuming from step (\d+), epoch \d+, batch (\d+)", log)
    return [(int(step), int(batch)) for step, batch in resumed]


def metrics(run_dir: Path) -> list[dict[str, str]]:
    """Return the lines of metrics.csv, without columns that depend on the clock."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name not in OF_THE_CLOCK} for row in rows]


def examples(run_dir: Path) -> list[str]:
    """Return the lines of examples.jsonl; [] before the first validation."""
    path = run_dir / "examples.jsonl"
    return path.read_text().splitlines() if path.is_file() else []


def bundle(run_dir: Path) -> dict[str, bytes]:
    """Return every file of the bundle except the card, which has the run's name."""
    files = sorted((run_dir / "bundle").iterdir())
    return {file.name: file.read_bytes() for file in files if file.name != "README.md"}


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port
