"""Two processes: one run folder, and the loss of one process on the joint batch."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asr.data.module import SpeechData
from asr.data.sampler import BatchSampler
from asr.train import train
from tests.conftest import ROOT, TINY, resolved, tone_corpus

WORLD_SIZE = 2
SHORT = ["trainer.max_epochs=2", "schedule.warmup_steps=4"]


def column(run_dir: Path, name: str) -> list[float]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.fixture(scope="module")
def two_processes(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, started as a user would, from an otherwise empty folder."""
    folder = tmp_path_factory.mktemp("ddp")
    distributed = ["trainer.strategy=ddp", f"trainer.devices={WORLD_SIZE}", "run_dir=run"]
    command = [sys.executable, "-m", "asr.train", *TINY, *tone_corpus(tones), *SHORT, *distributed]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


def test_two_processes_leave_one_run_folder_and_nothing_else(two_processes: Path) -> None:
    assert [path.name for path in two_processes.iterdir()] == ["run"]
    run_dir = two_processes / "run"
    folders = ["bundle", "checkpoints", "fitted", "tensorboard"]
    files = ["config.yaml", "metrics.csv", "results.json", "train.log"]
    assert sorted(path.name for path in run_dir.iterdir()) == sorted([*folders, *files])
    assert len(list(run_dir.glob("tensorboard/events.*"))) == 1
    log = (run_dir / "train.log").read_text()
    assert log.count("training utterances") == 1, "the log says things once"


def test_two_processes_compute_the_losses_of_one_on_the_joint_batch(
    two_processes: Path, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SpeechData._plan

    def joint_plan(self: SpeechData, epoch: int, rank: int, world_size: int) -> BatchSampler:
        shares = [plan(self, epoch, rank, WORLD_SIZE) for rank in range(WORLD_SIZE)]
        batches: list[Any] = [[*ours, *theirs] for ours, theirs in zip(*(one.batches for one in shares), strict=True)]
        return BatchSampler(batches, epoch=epoch, factors=shares[0].factors)

    monkeypatch.setattr(SpeechData, "_plan", joint_plan)
    train(resolved(*TINY, *tone_corpus(tones), *SHORT, f"run_dir={tmp_path / 'joint'}"))
    # Sums in another order differ in the last bits, which a dozen steps of Adam blow up.
    for name, tolerance in (("train/loss", 1e-3), ("train/grad_norm", 5e-3), ("valid/loss", 1e-3)):
        joint, shared = column(tmp_path / "joint", name), column(two_processes / "run", name)
        assert shared == pytest.approx(joint, rel=tolerance), name
    assert column(two_processes / "run", "valid/wer") == column(tmp_path / "joint", "valid/wer")
