"""corpus.valid=[]: a run without a validation trains, resumes, starts from a model, and bundles its last weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from asr import plan
from asr.core.checkpoint.load import BUNDLE, CHECKPOINTS
from asr.core.checkpoint.saved import kept_checkpoints
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import refused

WITHOUT = ["corpus.valid=[]", "checkpoint.select=last", "trainer.max_epochs=-1"]


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / BUNDLE / "weights.safetensors")


def test_a_run_without_validation_resumes_and_bundles_its_last_weights(tones: Path, tmp_path: Path) -> None:
    common = [*TINY, *tone_corpus(tones), *WITHOUT, "checkpoint.every_steps=3"]
    train(settings_with(*common, "trainer.max_steps=8", f"run_dir={tmp_path / 'whole'}"))
    for steps in (3, 8):
        allow = "resume.allow=[trainer.max_steps]"
        train(settings_with(*common, f"trainer.max_steps={steps}", allow, f"run_dir={tmp_path / 'run'}"))
    checkpoints = kept_checkpoints(tmp_path / "run" / CHECKPOINTS)
    assert {checkpoint.score for checkpoint in checkpoints} == {None}
    saved = torch.load(checkpoints[-1].path, weights_only=True)["state_dict"]
    resumed, whole = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert resumed.keys() == whole.keys()
    for name, weight in resumed.items():
        torch.testing.assert_close(weight, saved[f"model.{name}"], rtol=0, atol=0)
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_that_starts_from_a_model_needs_no_validation(fluent: Path, tmp_path: Path) -> None:
    start = f"init.from={fluent / 'run'}"
    run_dir = tmp_path / "run"
    train(settings_with(*TINY, *tone_corpus(fluent), *WITHOUT, start, "trainer.max_steps=2", f"run_dir={run_dir}"))
    assert weights(run_dir).keys() == weights(fluent / "run").keys()


@pytest.mark.parametrize("override", ["checkpoint.select=average_last", "early_stopping.patience=2"])
def test_settings_that_need_a_validation_are_refused(override: str, tones: Path) -> None:
    name = override.partition("=")[0]
    with refused(InputError, f"{name} ... corpus.valid"):
        settings_with(*TINY, *tone_corpus(tones), *WITHOUT, "trainer.max_steps=2", override)


def test_the_plan_names_no_validation(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.plan(settings_with(*TINY, *tone_corpus(tones), *WITHOUT, "trainer.max_steps=2"))
    assert "validation: none" in capsys.readouterr().out
