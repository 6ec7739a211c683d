"""Bulk jobs on a real Ray cluster of two nodes, whose processes are killed: the files equal those of one process."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.apps.bulk.parts import PartTask
from asr.apps.bulk.ray_engine import (
    MAX_DEATHS,
    MAX_DEATHS_ALONE,
    MAX_SEARCHES,
    Outcome,
    _check_reachable,
    _ended,
    _Part,
)
from asr.core.data.manifest import Utterance
from asr.errors import InputError
from tests.bulk import BAD, failures_of, files_of, finished_job, job_options, lines, start, texts_of, write_input
from tests.conftest import ROOT
from tests.refusals import mentions, refused

PATIENCE = 600  # seconds, for operations that take half a minute, or minutes if other work uses the cores
# Workers import this module when they start. It kills a worker that opens kills.flac, as if memory had run out.
KILLED_BY_A_FILE = """
import builtins, os, signal
opened = builtins.open
def open(file, *arguments, **options):
    if "kills.flac" in str(file):
        os.kill(os.getpid(), signal.SIGKILL)
    return opened(file, *arguments, **options)
builtins.open = open
"""


# ---- order of attempts, without a cluster


def search(killers: set[int], number: int = 13) -> tuple[dict[str, str], int]:
    """Run a part whose process dies on each utterance in `killers`.

    Returns:
        The excluded utterances, and the number of attempts.
    """
    utterances = [Utterance("a.wav", 1.0, "", str(place)) for place in range(number)]
    part, attempts = _Part(PartTask(0, utterances, True, {})), 0
    while True:
        attempts += 1
        task = part.next_task
        tried = {int(each.id) for each in task.utterances if each.id not in task.excluded}
        if tried & killers:
            part.died("WorkerCrashedError")
        elif part.suspects:
            part.tried()
        else:
            assert tried == set(range(number)) - killers, "the rest is transcribed in one attempt"
            return part.task.excluded, attempts


@pytest.mark.parametrize("killers", [set(), {0}, {12}, {5, 6}, {0, 3, 7, 12}, set(range(13))])
def test_a_search_finds_exactly_the_utterances_that_kill_their_process(killers: set[int]) -> None:
    excluded, attempts = search(killers)
    assert excluded.keys() == set(map(str, killers))
    depth = 4  # 13 utterances are halved four times
    assert attempts <= 1 + (MAX_DEATHS if killers else 0) + len(killers) * (2 * depth + MAX_DEATHS_ALONE)


def test_the_job_ends_with_a_one_line_error_after_deaths_not_caused_by_an_utterance() -> None:
    part = _Part(PartTask(7, [Utterance("a.wav", 1.0, "", "a"), Utterance("b.wav", 1.0, "", "b")], True, {}))
    with refused(InputError, "memory ... --batch-seconds"):
        for _ in range((MAX_SEARCHES + 1) * MAX_DEATHS):
            part.died("WorkerCrashedError")
            while part.suspects:
                part.tried()


def test_a_part_is_retried_after_one_death_of_its_worker() -> None:
    part = _Part(PartTask(0, [Utterance("a.wav", 1.0, "", "a")], True, {}))
    part.died("NodeDiedError")
    assert part.next_task == part.task


def test_an_unknown_error_ends_a_job_if_the_whole_part_raises_it_but_not_during_a_search() -> None:
    part = _Part(PartTask(0, [Utterance("a.wav", 1.0, "", name) for name in "abcd"], True, {}))
    ray = SimpleNamespace(get=lambda _: Outcome(error="broken", kind="fault"))
    for _ in range(MAX_DEATHS):
        part.died("WorkerCrashedError")
    assert part.suspects
    while part.suspects:
        assert _ended(ray, None, part) is None
    with pytest.raises(RuntimeError, match="broken"):
        _ended(ray, None, part)


# ---- a real cluster


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_an_address_without_a_server_is_refused_before_ray_connects(form: str) -> None:
    # The socket is bound but does not listen, so the port refuses connections, and no other process can use it.
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = form.format(reserved.getsockname()[1])
        with refused(InputError, f"status; got {address}: "):
            _check_reachable(address)


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_addresses_without_a_port_are_not_checked(address: str) -> None:
    _check_reachable(address)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes with one core each; the driver's node runs no workers."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a token into the home folder
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "sitecustomize.py").write_text(KILLED_BY_A_FILE)
    pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("input"), count=40)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an undisturbed job in one process."""
    return finished_job(source, tmp_path_factory.mktemp("undisturbed"), "--segments")


@dataclass
class Job:
    """asr.transcribe on a cluster.

    Args:
        cluster: address of the Ray cluster.
        output: folder of the job, which does not exist yet; the log is written beside it.
    """

    cluster: Any
    output: Path

    def start(self, source: Path) -> BaseProcess:
        options = job_options(source, self.output, "--segments", "--engine", "ray", "--address", self.cluster.address)
        return start(options, self.output.with_name("log"))

    def finish(self, process: BaseProcess) -> None:
        process.join(PATIENCE)
        assert process.exitcode == 0, self.output.with_name("log").read_text()


@pytest.fixture
def job(cluster: Any, tmp_path: Path) -> Job:
    return Job(cluster, tmp_path / "out")


def wait_for(condition: Callable[[], object], description: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"this did not happen in time: {description}"
        time.sleep(0.05)


def task_processes() -> list[int]:
    """Return the ids of the Ray processes whose titles show that they run one of our tasks."""
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 1) for line in shown.splitlines())
    return [int(row[0]) for row in rows if len(row) == 2 and row[1].startswith("ray::work")]


def num_parts(output: Path) -> int:
    return len(list(output.glob("part-*.jsonl")))


def kill_tasks(job: Job) -> None:
    def kill_a_task() -> bool:  # a process may end between the listing and the signal
        for process in task_processes()[:1]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                return True
        return False

    draw = random.Random(3)
    for done in (0, 2, 5):
        wait_for(lambda done=done: num_parts(job.output) >= done and task_processes(), "a task runs")  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.3))
        wait_for(kill_a_task, "a task is killed")


def kill_a_node(job: Job) -> None:
    wait_for(lambda: num_parts(job.output) >= 1, "a part is done")
    [node] = job.cluster.worker_nodes
    for raylet in node.all_processes["raylet"]:
        os.kill(raylet.process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [kill_tasks, kill_a_node])
def test_killed_processes_change_no_output(
    kill: Callable[[Job], None], job: Job, source: Path, undisturbed: Path
) -> None:
    process = job.start(source)
    kill(job)
    job.finish(process)
    assert files_of(job.output) == files_of(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_command_resumes_the_job_after_its_driver_is_killed(job: Job, source: Path, undisturbed: Path) -> None:
    process = job.start(source)
    wait_for(lambda: num_parts(job.output) >= 2, "two parts are done")
    process.kill()
    process.join()
    done = num_parts(job.output)
    assert 2 <= done < num_parts(undisturbed)
    job.finish(job.start(source))
    assert files_of(job.output) == files_of(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_that_kills_its_worker_is_a_failure_and_all_other_good_files_have_texts(
    job: Job, tmp_path: Path
) -> None:
    manifest = write_input(tmp_path / "input", count=12)
    killer = tmp_path / "input" / "audio" / "kills.flac"
    (tmp_path / "input" / "audio" / "005.flac").rename(killer)
    manifest.write_text(manifest.read_text().replace("005.flac", "kills.flac"))
    job.finish(job.start(manifest))
    failures, texts = failures_of(job.output), texts_of(job.output)
    assert failures.keys() == {f"bad {kind}" for kind in BAD} | {"good 5"}
    assert mentions(failures["good 5"], "crashes the process")
    assert failures.keys() | texts.keys() == {entry["id"] for entry in lines(manifest)}
    assert len(texts) == 11
