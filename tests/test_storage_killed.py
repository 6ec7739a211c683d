"""Training runs on shards in S3 when the server, a loading process or a rank is killed, or the cache disk is full.

Each run ends bit-identical to an undisturbed run, or stops with one line; then the same command resumes it and the
result is bit-identical, too. No file of a run, and no output, contains a key, a token or a signature.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asr import shards
from tests.conftest import PATIENCE, TINY, resolved
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import mentions
from tests.storing import MortalS3
from tests.test_faults import children
from tests.test_resume import remove_ids_after_checkpoint, write_ids
from tests.tones import sentences, write_corpus

TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN"
SIGNATURE = "5ec2e7a9f0"
TWO = ["trainer.strategy=ddp", "trainer.devices=2"]
RUN = [
    *TINY,
    "augment=[speed_perturb,spec_augment]",
    "encoder.block.dropout=0.1",
    "data.batch_seconds=10",
    "data.timeout_seconds=2",
    "trainer.max_epochs=2",
    "num_threads=1",
    "checkpoint.every_steps=3",
    "corpus.name=tones",
    "corpus.prepare=null",
    "corpus.dir=s3://bucket",
    "corpus.train=[{manifest:train/index.arrow,weight:0.7},{manifest:other/index.arrow,weight:2.5}]",
    "corpus.valid=[valid/index.arrow]",
    "corpus.test=[test/index.arrow]",
]


@pytest.fixture(scope="module")
def folder(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder: the tones and a second training set in shards, and the tones as files, one damaged."""
    folder = tmp_path_factory.mktemp("s3") / "bucket"
    write_corpus(folder.parent, {"other": sentences(20, seed=9)})
    manifests = {name: tones / f"{name}.jsonl" for name in ("train", "valid", "test")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shards, "MIN_MEGABYTES", 0.0)
        for name, manifest in (manifests | {"other": folder.parent / "other.jsonl"}).items():
            assert shards.main([str(manifest), "-o", str(folder / name), "--shard-megabytes", "0.3"]) == 0
    shutil.copytree(tones / "audio", folder / "audio")
    path = folder / "audio" / "train-7.flac"
    path.write_bytes(path.read_bytes()[:1000])
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[MortalS3]:
    server = MortalS3(folder)
    yield server
    server.kill()


@pytest.fixture
def s3(server: MortalS3) -> Iterator[MortalS3]:
    """The server, which is started again after a test that kills it."""
    yield server
    if not server.is_alive:
        server.start()


@pytest.fixture(scope="module")
def whole(server: MortalS3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(begin(server, folder / "run", folder / "log")) == 0, (folder / "log").read_text()
    return folder / "run"


@pytest.fixture(autouse=True)
def _no_secrets(tmp_path: Path, server: MortalS3) -> Iterator[None]:
    """Look for secrets in all files of a test, however its training runs ended."""
    yield
    secrets = [server.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path / "signed"]
    assert files
    for secret in (*secrets, TOKEN, SIGNATURE):
        assert [path for path in files if secret.encode() in path.read_bytes()] == []


def begin(
    s3: MortalS3,
    run_dir: Path,
    log: Path,
    *overrides: str,
    world_size: int = 1,
    before: Callable[[], object] | None = None,
) -> Any:
    """Start a training run that reads from the server with temporary credentials."""
    environment = {**s3.environment, "AWS_SESSION_TOKEN": TOKEN}
    config = resolved(*RUN, f"run_dir={run_dir}", *overrides)
    return start(config, log, world_size=world_size, before=before, environment=environment)


def errors(log: Path) -> list[str]:
    """Return the error lines of a run's log, which must have no traceback except those of a rank's loading processes.

    Loading processes may outlive a killed rank for a moment; then one of their threads reports the lost connection.
    """
    lines = [line for line in log.read_text().splitlines() if not line.startswith("[rank")]
    assert not any("Traceback" in line for line in lines), lines
    return [line for line in lines if " error: " in line]


def same(run_dir: Path, whole: Path) -> bool:
    return bundle(run_dir) == bundle(whole) and metrics(run_dir) == metrics(whole)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_server_that_is_killed_and_restarted_only_delays_training(
    num_workers: int, whole: Path, s3: MortalS3, tmp_path: Path
) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    running = begin(s3, run_dir, log, f"data.num_workers={num_workers}", "data.retry_seconds=60")
    assert wait_for(lambda: steps_logged(run_dir) > 4, running)
    s3.kill()
    time.sleep(1)
    assert running[0].is_alive()
    s3.start()
    assert finish(running) == 0, log.read_text()
    assert same(run_dir, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "world_size"), [(0, 1), (2, 1), (1, 2)])
def test_a_server_that_stays_down_ends_training_with_one_line_that_says_how_to_resume(
    num_workers: int, world_size: int, request: pytest.FixtureRequest, s3: MortalS3, tmp_path: Path
) -> None:
    run_dir, log, undisturbed = tmp_path / "run", tmp_path / "log", request.getfixturevalue("whole")
    overrides = [f"data.num_workers={num_workers}", "data.retry_seconds=1", *(TWO if world_size > 1 else [])]
    if world_size > 1:
        undisturbed = tmp_path / "whole"
        assert finish(begin(s3, undisturbed, tmp_path / "whole.log", *overrides, world_size=2)) == 0
    running = begin(s3, run_dir, log, *overrides, world_size=world_size)
    assert wait_for(lambda: steps_logged(run_dir) > 4, running)
    s3.kill()
    assert finish(running) == 1
    lines = errors(log)
    assert 1 <= len(lines) <= world_size
    for line in lines:
        assert mentions(line, "error: s3://bucket/ ... Connection refused ... to resume.")
    s3.start()
    assert finish(begin(s3, run_dir, tmp_path / "second.log", *overrides, world_size=world_size)) == 0
    [(step, _)] = resumptions(run_dir)
    assert step >= 3
    assert same(run_dir, undisturbed)


@pytest.mark.slow
def test_training_resumes_with_another_number_of_loading_processes_after_one_was_killed(
    whole: Path, s3: MortalS3, tmp_path: Path
) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    for num_workers in (2, 1):
        done = steps_logged(run_dir)
        running = begin(s3, run_dir, log, f"data.num_workers={num_workers}", "checkpoint.every_steps=1")
        assert wait_for(lambda done=done: steps_logged(run_dir) > done + 3, running)  # type: ignore[misc]
        workers = children(running[0].pid)
        os.kill(workers[-1], signal.SIGKILL)
        assert finish(running) == 1, log.read_text()
        [line] = errors(log)
        assert mentions(line, "processes that read ... to resume")
        log.unlink()
    assert finish(begin(s3, run_dir, log, "data.num_workers=3")) == 0, log.read_text()
    assert len(resumptions(run_dir)) == 2
    assert same(run_dir, whole)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_training_on_two_ranks_resumes_after_one_was_killed(rank: int, s3: MortalS3, tmp_path: Path) -> None:
    whole, run_dir, log = tmp_path / "whole", tmp_path / "run", tmp_path / "log"
    overrides = [*TWO, "data.num_workers=1", "checkpoint.every_steps=1"]
    assert finish(begin(s3, whole, tmp_path / "whole.log", *overrides, world_size=2)) == 0
    running = begin(s3, run_dir, log, *overrides, world_size=2)
    assert wait_for(lambda: steps_logged(run_dir) > 4, running)
    workers = children(running[rank].pid)
    assert workers
    running[rank].kill()
    finish(running)
    end = time.monotonic() + PATIENCE
    while any(Path("/proc", str(worker)).exists() for worker in workers):
        assert time.monotonic() < end, "a loading process is still alive"
        time.sleep(0.1)
    assert running[1 - rank].exitcode == 1
    [line] = errors(log)
    assert mentions(line, "all 2 processes ... to resume.")
    assert finish(begin(s3, run_dir, tmp_path / "second.log", *overrides, world_size=2)) == 0
    assert resumptions(run_dir)
    assert same(run_dir, whole)


def utterances_of_epochs(folder: Path) -> list[Counter[str]]:
    """Count the ids that `write_ids` has written."""
    return [
        Counter(name for path in folder.glob(f"{epoch}-*") for name in path.read_text().split()) for epoch in range(2)
    ]


@pytest.mark.slow
def test_a_run_resumed_on_other_numbers_of_ranks_plays_each_utterance_as_often_as_an_undisturbed_run(
    s3: MortalS3, tmp_path: Path
) -> None:
    ids, undisturbed = tmp_path / "ids", tmp_path / "undisturbed"
    for path in (ids, undisturbed):
        path.mkdir()
    before = partial(write_ids, undisturbed)
    assert finish(begin(s3, tmp_path / "whole", tmp_path / "whole.log", before=before)) == 0
    run_dir, log = tmp_path / "run", tmp_path / "log"
    small = ["data.max_utterances=2", "data.num_workers=1", "checkpoint.every_steps=1", "resume.allow=[world_size]"]
    for world_size in (1, 2, 1):
        overrides, done = [*small, *(TWO if world_size == 2 else [])], steps_logged(run_dir)
        running = begin(s3, run_dir, log, *overrides, world_size=world_size, before=partial(write_ids, ids))
        assert wait_for(lambda done=done: steps_logged(run_dir) > done + 3, running)  # type: ignore[misc]
        kill(running)
        remove_ids_after_checkpoint(ids, run_dir)
    assert finish(begin(s3, run_dir, log, *small, before=partial(write_ids, ids))) == 0, log.read_text()
    assert "no longer bit-identical" in log.read_text()
    assert utterances_of_epochs(ids) == utterances_of_epochs(undisturbed)


def test_a_full_cache_disk_causes_a_warning_and_the_result_is_bit_identical(
    whole: Path, s3: MortalS3, tmp_path: Path
) -> None:
    run_dir, log, disk = tmp_path / "run", tmp_path / "log", tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        assert finish(begin(s3, run_dir, log, f"data.cache_dir={disk / 'cache'}")) == 0, log.read_text()
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_bsize < 50_000
    finally:
        subprocess.run(["umount", disk], check=True)
    warnings = re.findall(
        r"data\.cache_dir .*cannot be written \((?:the disk is full|No space left on device)\)", log.read_text()
    )
    assert len(warnings) == 1
    assert same(run_dir, whole)


def signed(tones: Path, s3: MortalS3, corpus: Path) -> list[str]:
    """Write manifests of the tones at signed URLs; return the overrides of a training run on them."""
    corpus.mkdir()
    for name in ("train", "valid", "test"):
        lines = [json.loads(line) for line in (tones / f"{name}.jsonl").read_text().splitlines()]
        for line in lines:
            url = f"http://127.0.0.1:{s3.port}/bucket/audio/{Path(line['audio_filepath']).name}"
            line["audio_filepath"] = f"{url}?X-Amz-Signature={SIGNATURE}&X-Amz-Security-Token={TOKEN}"
        (corpus / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    manifests = [f"corpus.{name}=[{name}.jsonl]" for name in ("train", "valid", "test")]
    return [f"corpus.dir={corpus}", *manifests, "data.max_bad_fraction=0.5"]


def test_no_file_of_a_training_run_contains_signed_urls(
    tones: Path, folder: Path, s3: MortalS3, tmp_path: Path
) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    overrides = signed(tones, s3, tmp_path / "signed")
    assert finish(begin(s3, run_dir, log, *overrides, "trainer.max_epochs=1")) == 0, log.read_text()
    assert "epoch 1: skipped 'train-7'" in log.read_text()
    assert "/bucket/audio/train-7.flac" in log.read_text()
    names = {path.name for path in run_dir.iterdir()}
    assert {"train.log", "config.yaml", "events.jsonl", "metrics.csv", "report.html", "results.json"} <= names

    failed = begin(s3, tmp_path / "failed", tmp_path / "failed.log", *overrides, "data.retry_seconds=1")
    assert wait_for(lambda: steps_logged(tmp_path / "failed") > 2, failed)
    s3.kill()
    assert finish(failed) == 1
    [line] = errors(tmp_path / "failed.log")
    assert re.search(r"/bucket/audio/\S+\.flac: .*Connection refused", line)
