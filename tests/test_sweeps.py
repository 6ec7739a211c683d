"""With the plugins that the extras install, --multirun runs its jobs as the files of conf/sweep define."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml

from asr.core.training import hydra_command
from asr.errors import InputError
from tests.conftest import ROOT, TINY, tone_corpus
from tests.processes import metrics
from tests.refusals import refused

SEARCHED = ("optimizer.lr", "schedule.warmup_steps")
FEW = [line for line in TINY if not line.startswith(SEARCHED)] + ["data.max_train_utterances=8", "trainer.max_epochs=1"]


def multirun(folder: Path, *overrides: str) -> Path:
    command = [sys.executable, "-m", "asr.train", "--multirun", *FEW, "run_dir=runs", *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder / "runs"


def validated(run_dir: Path) -> float:
    return min(float(row["valid/wer"]) for row in metrics(run_dir) if row["valid/wer"])


@pytest.mark.slow
def test_optuna_minimises_the_validation_wer(tones: Path, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="hydra-optuna-sweeper is not installed")
    runs = multirun(tmp_path, "sweep=[optuna]", "hydra.sweeper.n_trials=2", *tone_corpus(tones))
    results = yaml.safe_load((runs / "optimization_results.yaml").read_text())
    assert results["best_params"].keys() == set(SEARCHED)
    assert results["best_value"] == pytest.approx(min(validated(runs / job) for job in "01"), abs=1e-4)


@pytest.mark.slow
def test_submitit_runs_each_job_in_a_separate_process(tones: Path, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="hydra-submitit-launcher is not installed")
    runs = multirun(tmp_path, "hydra/launcher=submitit_local", "seed=1,2", *tone_corpus(tones))
    assert all("test" in json.loads((runs / job / "results.json").read_text()) for job in "01")


@pytest.mark.parametrize(
    ("name", "package"), [("optuna", "hydra-optuna-sweeper"), ("slurm", "hydra-submitit-launcher")]
)
def test_if_the_package_of_a_sweep_is_absent_the_error_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(hydra_command, "distribution", absent)
    hydra_command.check_sweep_packages(["seed=1,2", "experiment=digits"])
    with refused(InputError, f"sweep=[{name}] ... {package}"):
        hydra_command.check_sweep_packages(["--multirun", f"sweep=[{name}]"])
