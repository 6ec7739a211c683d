"""The planned learning rate of a run, the doctor's findings on it, and warnings about a model that does not learn."""

import logging
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asr.apps.doctor.finding import Severity
from asr.apps.doctor.forecast import warm_up_findings
from asr.core.checkpoint.saved import SavedCheckpoint
from asr.core.data.manifest import Utterance
from asr.core.data.token_counts import frequency_loss
from asr.core.data.utterances import Utterances
from asr.core.objective.outcome import warn_of_chance
from asr.core.run import learning_rate
from asr.core.run.learning_rate import PlannedRates, planned_rates
from asr.core.training.callbacks import StuckAtFrequencies
from tests.conftest import SHARED, needs_shared, resolved
from tests.refusals import mentions


def rates(total_steps: int, *overrides: str) -> PlannedRates:
    components = resolved("optimizer.lr=0.5", *overrides)
    return planned_rates(components, total_steps, steps_per_epoch=10)


@pytest.mark.parametrize("schedule", ["noam", "cosine"])
@pytest.mark.parametrize(("total_steps", "warmup_steps"), [(1000, 100), (7, 1), (50, 49)])
def test_the_planned_rates_of_a_run_have_their_peak_at_the_end_of_the_warm_up(
    schedule: str, total_steps: int, warmup_steps: int
) -> None:
    planned = rates(total_steps, f"schedule={schedule}", f"schedule.warmup_steps={warmup_steps}")
    assert len(planned.rates) == total_steps
    assert planned.rates[planned.warmup_steps - 1] == max(planned.rates) == 0.5
    assert (planned.warmup_steps, planned.reaches_peak) == (warmup_steps, True)
    assert planned.warmup_share == warmup_steps / total_steps


def test_a_very_long_run_is_described_by_evenly_spaced_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_rate, "MAX_RATES", 10_000)
    planned = rates(100_000, "schedule=noam", "schedule.warmup_steps=1000")
    assert len(planned.rates) == 10_000
    whole = 0.5 * math.fsum(min(step / 1000, (step / 1000) ** -0.5) for step in range(1, 100_001))
    assert sum(planned.rates) * planned.steps.step == pytest.approx(whole, rel=1e-3)
    assert planned.warmup_steps == pytest.approx(1000, abs=10)
    assert planned.reaches_peak


@pytest.mark.parametrize(("warmup_steps", "severities"), [(50, []), (51, [Severity.WARNING]), (200, [Severity.ERROR])])
def test_a_run_that_is_mostly_warm_up_is_reported(warmup_steps: int, severities: list[Severity]) -> None:
    findings = warm_up_findings(rates(100, f"schedule.warmup_steps={warmup_steps}"))
    assert [finding.severity for finding in findings] == severities
    assert all("schedule.warmup_steps" in finding.advice for finding in findings)


def test_the_loss_by_frequencies_is_the_entropy_of_the_tokens() -> None:
    texts = ["aab", "", "b", "ca"]
    utterances = Utterances.of([Utterance("x.wav", 1.0, text, text) for text in texts])
    # 7 tokens: a 3 times, b twice, c once ... written as a mean of surprises, token by token
    tokens = list(map(ord, "".join(texts)))
    counts = Counter(tokens)
    surprise = sum(-math.log(counts[token] / len(tokens)) for token in tokens) / len(tokens)
    assert frequency_loss(utterances, lambda text: list(map(ord, text))) == pytest.approx(surprise, rel=1e-12)


@needs_shared
def test_the_loss_by_frequencies_of_the_letters_of_english() -> None:
    lines = (SHARED / "text" / "lm_text_train.txt").read_text().splitlines()
    utterances = Utterances.of([Utterance("x.wav", 1.0, text, str(row)) for row, text in enumerate(lines)])
    letters = frequency_loss(utterances, lambda text: list(map(ord, text.lower())))
    # Shannon 1951, Prediction and Entropy of Printed English, table 1: 4.03 bits for letters and space
    assert letters == pytest.approx(4.03 * math.log(2), abs=0.1)


def test_a_validation_loss_that_needs_no_audio_is_reported_once_and_only_after_the_warm_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer: Any = SimpleNamespace(num_training_batches=20, accumulate_grad_batches=2)
    task: Any = SimpleNamespace(total_steps=1000)
    callback = StuckAtFrequencies(resolved("schedule.warmup_steps=100"), lambda: 4.0)
    callback.on_train_start(trainer, task)

    def validate(step: int, loss: float) -> None:
        trainer.global_step, trainer.callback_metrics = step, {"valid/loss": loss}
        callback.on_validation_end(trainer, task)

    for step, loss in [(50, 5.0), (100, 4.1), (150, 3.7)]:
        validate(step, loss)
    assert not caplog.records
    for step, loss in [(200, 3.9), (250, 4.0)]:
        validate(step, loss)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert mentions(record.message, "3.900 ... 4.000 ... optimizer.lr")


def test_a_run_that_ends_within_its_warm_up_reports_at_its_last_step_that_it_has_learnt_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer: Any = SimpleNamespace(num_training_batches=9, accumulate_grad_batches=1)
    callback = StuckAtFrequencies(resolved("schedule.warmup_steps=100"), lambda: 2.8)
    callback.on_train_start(trainer, cast("Any", SimpleNamespace(total_steps=18)))
    trainer.callback_metrics = {"valid/loss": 3.2}
    for trainer.global_step in (9, 18):
        assert not caplog.records
        callback.on_validation_end(trainer, cast("Any", None))
    (record,) = caplog.records
    assert mentions(record.message, "18 ... 18 of 18 ... 3.200 ... 2.800 ... schedule.warmup_steps")


@pytest.mark.parametrize(("worst", "is_reported"), [(0.104, True), (0.12, False)])
def test_a_selection_among_checkpoints_that_differ_by_chance_is_reported(
    worst: float, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scores = [0.1, worst, None]  # of 2,000 words, 10 % have a standard error of 0.67 points
    checkpoints = [SavedCheckpoint(Path(f"{step}.ckpt"), step, score) for step, score in enumerate(scores)]
    warn_of_chance(checkpoints, "best", 2000)
    assert len(caplog.records) == is_reported
    assert all("0.67" in record.message for record in caplog.records)
