"""corpus.valid=[]: a run without a validation trains, resumes, starts from a model, and bundles its last weights."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from asr import plan
from asr.core.checkpoint.load import BUNDLE, CHECKPOINTS
from asr.core.checkpoint.saved import kept_checkpoints
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.evaluation.comparison import before_and_after, compare, gain, verdict
from asr.core.evaluation.utterances import Scored, score
from asr.core.recognition.transcript import Transcript, Word
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
    plan.plan(settings_with(*TINY, *tone_corpus(tones), *WITHOUT, "trainer.max_steps=2", "schedule.warmup_steps=1"))
    assert "validation: none" in capsys.readouterr().out


def test_without_words_there_is_no_wer_and_without_tokens_no_loss(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="asr")
    wordless = [replace(utterance, text="") for utterance in read_manifest(tones / "valid.jsonl")[:3]]
    write_manifest(tmp_path / "wordless.jsonl", wordless)
    given = [f"corpus.{split}=[{tmp_path / 'wordless.jsonl'}]" for split in ("valid", "test")]
    run_dir, steps = tmp_path / "run", ["trainer.max_epochs=1", "schedule.warmup_steps=1", "checkpoint.select=last"]
    train(settings_with(*TINY, *tone_corpus(tones), *given, *steps, f"run_dir={run_dir}"))
    log = caplog.text
    assert "valid loss -, WER -" in log
    assert "wordless: WER - of 0 words" in log
    assert "WARNING" not in log
    [validation] = [
        event for event in map(json.loads, (run_dir / "events.jsonl").open()) if event["event"] == "validation"
    ]
    assert validation["loss"] is None
    assert validation["score"] is None
    assert json.loads((run_dir / "results.json").read_text())["wordless"]["wer"] is None


def test_two_models_are_not_compared_without_words() -> None:
    def evaluated(hypothesis: str) -> list[Scored]:
        utterances = [Utterance("a.wav", 1.0, "", str(number)) for number in range(20)]
        words = tuple(Word(word, 0.0, 0.1, 1.0) for word in hypothesis.split())
        return [score(each, "silence", "", Transcript(words, (), 1.0), hypothesis) for each in utterances]

    comparison = compare(evaluated("oh"), evaluated(""))
    assert comparison["difference"]["rate"] is None
    assert before_and_after(comparison).startswith("WER - before, - after")
    for sentence in (gain(comparison), verdict(comparison), before_and_after(comparison)):
        assert "no words" in sentence
        assert "too small" not in sentence
