"""The batch of a fine-tuning run is shortened until its step fits into the free memory."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asr.data.corpus import read_corpus
from asr.data.index_cache import IndexCache
from asr.diagnosis.batch_size import SHARE, fitting_batch_seconds, largest
from asr.diagnosis.forecast import CPU_FACTOR, fresh_model
from asr.diagnosis.planned import planned
from asr.diagnosis.training_memory import step_bytes
from asr.diagnosis.trial import Trial
from asr.errors import InputError
from asr.run.settings import RunSettings
from asr.text.normalize import get_normalizer
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import refused


@pytest.mark.parametrize(("limit", "expected"), [(100, 40), (40, 40), (39.9, 30), (29, 22.5), (12, 10), (10, 10)])
def test_a_batch_is_shortened_by_quarters_down_to_the_longest_utterance(limit: float, expected: float) -> None:
    assert largest(lambda seconds: seconds - limit, 40, least=10) == expected


def test_the_longest_utterance_is_tried_even_if_the_first_batch_is_far_longer() -> None:
    assert largest(lambda seconds: seconds - 10, 400, least=10) == 10


def test_a_model_that_does_not_fit_with_any_batch_is_refused() -> None:
    with refused(InputError, "batch of 10 s", cure="smaller model"):
        largest(lambda seconds: 1e9, 400, least=10)


def with_batch(settings: RunSettings, batch_seconds: float) -> RunSettings:
    batches = replace(settings.data.plan.batches, batch_seconds=batch_seconds)
    return replace(settings, data=replace(settings.data, plan=replace(settings.data.plan, batches=batches)))


@pytest.mark.parametrize("share", [0.3, 0.6, 2.0])
def test_the_step_of_the_chosen_batch_fits_and_is_at_least_seventy_percent_of_the_best(
    share: float, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "data.batch_seconds=30", "augment=[]")
    corpus = read_corpus(settings.corpus, get_normalizer("basic"), IndexCache(str(tmp_path / "index")).utterances)
    model, utterances, _ = fresh_model(settings, corpus, corpus)

    def needed(batch_seconds: float) -> float:
        """Bytes of the step on the largest batch of the plan, measured as a whole."""
        plan = planned(with_batch(settings, batch_seconds), utterances, model)
        trial = Trial(model, torch.optim.SGD(model.parameters()), plan.training_set, torch.device("cpu"), "32-true")
        model.zero_grad()
        return step_bytes(model, trial.made_up(trial.largest(plan.first)), nullcontext, average=False)

    limit = share * needed(30)
    monkeypatch.setattr("asr.diagnosis.trial.free_memory", lambda: limit * CPU_FACTOR / SHARE)
    chosen = fitting_batch_seconds(settings, utterances, model)
    best = max(seconds for seconds in range(3, 31) if needed(seconds) <= limit)
    assert needed(chosen) <= limit
    assert chosen >= 0.7 * best
