"""Worker processes are forked, whatever Python's default is: Python 3.14 has another default than 3.13."""

import multiprocessing
import os
from functools import partial
from pathlib import Path

import pytest

from asr.base.system.parallel import MIN_PARALLEL, in_parallel
from asr.errors import InputError
from asr.transcribe import main as transcribe
from tests.bulk import BUNDLE, job_options
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.forked import run_module
from tests.processes import finish, start
from tests.refusals import refused

METHODS = ["forkserver", "spawn"]


def slow_but_for(first: str) -> list[object]:
    return [method if method == first else pytest.param(method, marks=pytest.mark.slow) for method in METHODS]


@pytest.mark.parametrize("method", slow_but_for("spawn"))
def test_a_training_with_workers_ends(method: str, tones: Path, tmp_path: Path) -> None:
    short = ["trainer.max_epochs=1", "num_threads=1", "corpus.test=[]", f"run_dir={tmp_path / 'run'}"]
    settings = resolved(*TINY, *tone_corpus(tones), *short, "data.num_workers=1")
    before = partial(multiprocessing.set_start_method, method, force=True)
    assert finish(start(settings, tmp_path / "log", before=before)) == 0, (tmp_path / "log").read_text()
    assert "data.num_workers=1" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.parametrize(
    ("cores", "overrides", "num_workers"),
    [
        (1, [], 0),
        (4, [], 3),
        (64, [], 8),
        (16, ["trainer.devices=4"], 3),
        (16, ["trainer.devices=4", "trainer.num_nodes=2"], 3),  # a machine has four of the eight processes
        (4, ["trainer.devices=8"], 0),
        (4, ["data.num_workers=0"], 0),
    ],
)
def test_without_a_number_the_cores_of_a_machine_are_divided_among_its_training_processes(
    cores: int, overrides: list[str], num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    settings = settings_with("data.num_workers=null", "trainer.accelerator=cpu", *overrides)
    assert settings.num_workers == num_workers


def test_on_macos_the_training_process_reads_audio_if_no_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert settings_with("data.num_workers=null").num_workers == 0


@pytest.mark.parametrize("method", slow_but_for("forkserver"))
def test_a_transcription_with_workers_ends(method: str, tones: Path) -> None:
    done = run_module("asr.transcribe", BUNDLE, tones / "test.jsonl", "--num-workers", "1", method=method)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8


@pytest.mark.apps
@pytest.mark.parametrize("method", slow_but_for("spawn"))
def test_a_bulk_job_with_workers_ends(method: str, tones: Path, tmp_path: Path) -> None:
    options = job_options(tones / "test.jsonl", tmp_path / "parts", "--num-workers", "1")
    done = run_module("asr.transcribe", *options, method=method)
    assert done.returncode == 0, done.stderr


def test_on_macos_workers_are_refused_and_processes_are_not_forked(
    tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with refused(InputError, "data.num_workers", got=2):
        settings_with("data.num_workers=2")
    assert settings_with("data.num_workers=0").data.num_workers == 0
    with refused(InputError, "--num-workers", got=1):
        transcribe([str(BUNDLE), str(tones / "test.jsonl"), "--num-workers", "1"])
    processes = set(in_parallel(lambda _: multiprocessing.current_process().pid, range(MIN_PARALLEL + 1)))
    assert processes == {multiprocessing.current_process().pid}
