"""Bulk jobs on a real Ray cluster of two nodes, whose processes are killed: the files are those of one process."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.bulk.parts import PartTask
from asr.bulk.ray_engine import MAX_DEATHS, MAX_DEATHS_ALONE, MAX_SEARCHES, Outcome, _ended, _Part
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.transcribe import main as transcribe
from tests.bulk import BAD, failures_of, files_of, job_options, lines, start, texts_of, write_input
from tests.conftest import ROOT

PATIENCE = 240  # seconds, for what should take half a minute
# What a worker imports when it starts: opening a file of this name kills it, as running out of memory would.
KILLED_BY_A_FILE = """
import builtins, os, signal
opened = builtins.open
def open(file, *arguments, **options):
    if "kills.flac" in str(file):
        os.kill(os.getpid(), signal.SIGKILL)
    return opened(file, *arguments, **options)
builtins.open = open
"""


# ---- which attempt follows which, without a cluster


def search(killers: set[int], number: int = 13) -> tuple[dict[str, str], int]:
    """Run a part whose process dies with any of these utterances; return what was excluded, and all attempts."""
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
            assert tried == set(range(number)) - killers, "the rest is transcribed in one go"
            return part.task.excluded, attempts


@pytest.mark.parametrize("killers", [set(), {0}, {12}, {5, 6}, {0, 3, 7, 12}, set(range(13))])
def test_a_search_finds_the_utterances_that_end_their_process_and_no_others(killers: set[int]) -> None:
    excluded, attempts = search(killers)
    assert excluded.keys() == set(map(str, killers))
    depth = 4  # 13 utterances are halved four times
    assert attempts <= 1 + (MAX_DEATHS if killers else 0) + len(killers) * (2 * depth + MAX_DEATHS_ALONE)


def test_deaths_that_no_utterance_explains_end_the_job_in_one_line() -> None:
    part = _Part(PartTask(7, [Utterance("a.wav", 1.0, "", "a"), Utterance("b.wav", 1.0, "", "b")], True, {}))
    with pytest.raises(InputError, match=r"memory must suffice for part 7.*WorkerCrashedError.*--batch-seconds"):  # noqa: PT012
        for _ in range((MAX_SEARCHES + 1) * MAX_DEATHS):
            part.died("WorkerCrashedError")
            while part.suspects:
                part.tried()


def test_one_death_is_forgiven() -> None:
    part = _Part(PartTask(0, [Utterance("a.wav", 1.0, "", "a")], True, {}))
    part.died("NodeDiedError")
    assert part.next_task == part.task


def test_an_unknown_error_ends_a_job_when_the_whole_part_raises_it_and_not_during_a_search() -> None:
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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one core each; no worker is on the one that the driver is connected to but its own."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a token into it
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
    """The folder of a job of one process."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    transcribe(job_options(source, output, "--segments"))
    return output


def on_ray(cluster: Any, source: Path, output: Path) -> list[str]:
    return job_options(source, output, "--segments", "--engine", "ray", "--address", cluster.address)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)


def task_processes() -> list[int]:
    """Processes of Ray that run a task of ours: their titles say so."""
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 1) for line in shown.splitlines())
    return [int(row[0]) for row in rows if len(row) == 2 and row[1].startswith("ray::work")]


def num_parts(output: Path) -> int:
    return len(list(output.glob("part-*.jsonl")))


def assert_ends_like(undisturbed: Path, output: Path, process: Any, log: Path) -> None:
    """Wait for a job: it must end well, with the files of an undisturbed one."""
    process.join(PATIENCE)
    assert process.exitcode == 0, log.read_text()
    assert files_of(output) == files_of(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_of_tasks_that_are_killed_change_nothing(
    cluster: Any, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(on_ray(cluster, source, output), tmp_path / "log")
    draw, killed = random.Random(3), 0
    for done in (0, 2, 5):
        wait_for(lambda done=done: num_parts(output) >= done and task_processes(), "a task runs")  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.3))
        for victim in task_processes()[:1]:
            os.kill(victim, signal.SIGKILL)
            killed += 1
    assert killed == 3
    assert_ends_like(undisturbed, output, process, tmp_path / "log")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_is_killed_changes_nothing(cluster: Any, source: Path, undisturbed: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(on_ray(cluster, source, output), tmp_path / "log")
    wait_for(lambda: num_parts(output) >= 1, "a part is done")
    [node] = cluster.worker_nodes
    for raylet in node.all_processes["raylet"]:
        os.kill(raylet.process.pid, signal.SIGKILL)
    assert_ends_like(undisturbed, output, process, tmp_path / "log")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_resumes_with_the_same_command(
    cluster: Any, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = on_ray(cluster, source, output)
    process = start(arguments, tmp_path / "log")
    wait_for(lambda: num_parts(output) >= 2, "two parts are done")
    process.kill()
    process.join()
    done = num_parts(output)
    assert 2 <= done < num_parts(undisturbed)
    process = start(arguments, tmp_path / "log")
    assert_ends_like(undisturbed, output, process, tmp_path / "log")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_that_kills_its_worker_is_a_failure_and_all_others_have_texts(cluster: Any, tmp_path: Path) -> None:
    manifest = write_input(tmp_path / "input", count=12)
    killer = tmp_path / "input" / "audio" / "kills.flac"
    (tmp_path / "input" / "audio" / "005.flac").rename(killer)
    manifest.write_text(manifest.read_text().replace("005.flac", "kills.flac"))
    process = start(on_ray(cluster, manifest, tmp_path / "out"), tmp_path / "log")
    process.join(PATIENCE)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    failures, texts = failures_of(tmp_path / "out"), texts_of(tmp_path / "out")
    assert failures.keys() == {f"bad {kind}" for kind in BAD} | {"good 5"}
    assert failures["good 5"].startswith("it ends the process that recognises it: ")
    assert failures.keys() | texts.keys() == {entry["id"] for entry in lines(manifest)}
    assert len(texts) == 11
