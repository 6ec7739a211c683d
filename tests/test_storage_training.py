"""A training run that reads from an object store is bit-identical to one that reads files, or ends in an error line."""

import random
from pathlib import Path

import pytest

from asr.base.storage.store import write_whole
from asr.core.run.settings import RunSettings
from asr.errors import StoreError
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import refused
from tests.storing import FaultyProxy

SHORT = ["trainer.max_epochs=1", "data.retry_seconds=20", "data.timeout_seconds=2"]
FAULTS = ("slow_down", "reset", "cut", "reset_within", "hang_within")


@pytest.fixture
def uploaded(tones: Path, s3: FaultyProxy) -> str:
    for path in sorted(tones.rglob("*")):
        if path.suffix in (".jsonl", ".wav", ".flac"):
            write_whole(f"s3://bucket/tones/{path.relative_to(tones)}", path)
    s3.requests.clear()
    return "s3://bucket/tones"


def settings(corpus: str | Path, run_dir: Path, *more: str) -> RunSettings:
    return settings_with(*TINY, *tone_corpus(corpus), *SHORT, f"run_dir={run_dir}", *more)


def weights(run_dir: Path) -> bytes:
    [path] = (run_dir / "bundle").glob("*.safetensors")
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_from_a_faulty_store_with_a_cache_is_bit_identical_to_training_from_files(
    tones: Path, uploaded: str, s3: FaultyProxy, tmp_path: Path, num_workers: int
) -> None:
    two_epochs = "trainer.max_epochs=2"  # because workers start once per run, and must also serve the second epoch
    train(settings(tones, tmp_path / "files", two_epochs))
    drawn = random.Random(0)
    s3.faults.extend(drawn.choice(FAULTS) if drawn.random() < 0.3 else "" for _ in range(150))
    more = [two_epochs, f"data.num_workers={num_workers}", f"data.cache_dir={tmp_path / 'cache'}"]
    train(settings(uploaded, tmp_path / "store", *more))
    assert len(s3.faults) < 80  # fewer than 80 of 150 answers are left, so some faults occurred
    assert weights(tmp_path / "store") == weights(tmp_path / "files")
    assert any((tmp_path / "cache").rglob("*"))


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_training_run_whose_store_fails_ends_with_one_error_line(
    uploaded: str, s3: FaultyProxy, tmp_path: Path, num_workers: int
) -> None:
    s3.faults.extend([""] * 20)
    s3.forever = "expired"
    with refused(StoreError, "s3://bucket/tones/ ... ExpiredToken"):
        train(settings(uploaded, tmp_path / "run", f"data.num_workers={num_workers}"))
