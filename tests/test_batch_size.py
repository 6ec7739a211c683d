"""data.batch_seconds=auto: the longest batch that fits is found by trial, stored, and used as a number."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from asr.apps.doctor import memory
from asr.apps.doctor.forecast import fresh_model
from asr.apps.doctor.memory import (
    CPU_FACTOR,
    MAX_SECONDS,
    MAX_TRIALS,
    MIN_STEPS,
    SHARE,
    find_batch_seconds,
    longest,
    take_steps,
)
from asr.apps.doctor.planned import planned
from asr.apps.doctor.trial import MemoryLimit, PeakMemory, take_step
from asr.base.system.processes import limit_memory
from asr.base.text.normalize import get_normalizer
from asr.core.data.batch import Batch
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.run.settings import RunSettings
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import refused


@pytest.mark.parametrize("start", [10, 14, 30, 77.7, 200])
@pytest.mark.parametrize("limit", [10, 12, 39.9, 40, 100, 199, 500])
def test_the_chosen_length_fits_and_is_at_least_seventy_percent_of_the_best(start: float, limit: float) -> None:
    tried: list[float] = []

    def fit(seconds: float) -> bool:
        tried.append(seconds)
        return seconds <= limit

    chosen = longest(fit, start, least=10, most=200)
    assert 0.7 * min(limit, 200) <= chosen <= limit
    assert chosen in tried
    assert len(tried) <= MAX_TRIALS
    assert len(set(tried)) == len(tried)


def test_the_longest_utterance_is_tried_even_if_the_first_batch_is_far_longer() -> None:
    assert longest(lambda seconds: seconds <= 10, 4000, least=10, most=4000) == 10


def test_a_model_that_does_not_fit_with_any_batch_is_refused() -> None:
    with refused(InputError, "batches of 10 s", cure="smaller model"):
        longest(lambda seconds: False, 400, least=10, most=400)


def parts(settings: RunSettings, folder: Path) -> Any:
    corpus = read_corpus(settings.corpus, get_normalizer("basic"), IndexCache(str(folder / "index")).utterances)
    return fresh_model(settings, corpus, corpus)


def peak(model: Any, batches: Iterable[Batch]) -> float:
    """Bytes of the tensors of two steps on each batch, counted one by one, in addition to the weights."""
    model.requires_grad_(True).train()
    with PeakMemory([*model.parameters(), *model.buffers()]) as counted:
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in batches:
            for _ in range(2):
                take_step(model, optimizer, batch, nullcontext())
    return float(counted.peak)


@pytest.mark.parametrize("share", [0.3, 0.6, 2.0])
def test_with_a_counted_allocator_the_batch_never_exceeds_the_limit_and_is_nearly_the_best(
    share: float, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "data.batch_seconds=30")
    model, utterances, _ = parts(settings, tmp_path)
    peaks: dict[float, float] = {}

    def needed(batch_seconds: float) -> float:
        plan = planned(settings.with_batch_seconds(batch_seconds), utterances, model)
        noise = torch.Generator().manual_seed(0)
        largest = [plan.first.items(step, 0) for step in plan.first.largest()]
        batches = [plan.training_set.made_up(items, noise) for items in largest]
        return peaks.setdefault(batch_seconds, peak(model, batches))

    limit = share * needed(30)
    monkeypatch.setattr(memory, "take_steps", lambda settings, model, batches: peak(model, batches) <= limit)
    monkeypatch.setattr(MemoryLimit, "_in_child", lambda limit, function, arguments: function(*arguments))
    monkeypatch.setattr("asr.apps.doctor.trial.free_memory", lambda: limit * CPU_FACTOR / SHARE)
    chosen = find_batch_seconds(settings, utterances, model)
    best = max(seconds for seconds in range(3, 31) if needed(seconds) <= limit)
    assert needed(chosen) <= limit
    assert chosen >= 0.7 * best


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], "default"), (["optimizer.lr=1e-3"], "given"), (["trainer.accumulate_grad_batches=2"], "accumulated")],
)
def test_an_epoch_has_at_least_ten_steps_and_the_default_learning_rate_bounds_the_batch(
    given: list[str], expected: str, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = [override for override in TINY if not override.startswith("optimizer.lr")]
    settings = settings_with(*rate, *tone_corpus(tones), f"run_dir={tmp_path}", "data.batch_seconds=auto", *given)
    model, utterances, _ = parts(settings, tmp_path)
    monkeypatch.setattr(MemoryLimit, "_in_child", lambda *_: 1.0)  # all fits
    monkeypatch.setattr(memory, "MAX_SECONDS", 6.0)
    chosen = find_batch_seconds(settings, utterances, model)
    per_epoch = planned(settings.with_batch_seconds(chosen), utterances, model).per_epoch
    assert per_epoch >= MIN_STEPS
    assert (chosen > 6.0) == (expected == "given")
    if expected == "given":
        assert planned(settings.with_batch_seconds(1.5 * chosen), utterances, model).per_epoch < MIN_STEPS


def tried(settings: RunSettings, folder: Path) -> tuple[Any, list[Batch]]:
    """Return a model and a batch to try."""
    model, utterances, _ = parts(settings, folder)
    plan = planned(settings, utterances, model)
    batch = plan.training_set.made_up(plan.first.items(0, 0), torch.Generator().manual_seed(0))
    return model, [batch]


def test_a_step_is_tried_in_a_process_with_limited_memory(tones: Path, tmp_path: Path) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "data.batch_seconds=30")
    model, batches = tried(settings, tmp_path)
    before = [weight.clone() for weight in model.parameters()]
    assert MemoryLimit(settings, 2e9).run(take_steps, settings, model, batches)
    assert not MemoryLimit(settings, 3e6).run(take_steps, settings, model, batches)
    assert all(map(torch.equal, before, model.parameters()))


class Ending:
    """Ends the process in which it is unpickled."""

    def __init__(self, end: Callable[..., Any], *arguments: int) -> None:
        self.end, self.arguments = end, arguments

    def __reduce__(self) -> Any:
        return (_ended, (self.end, self.arguments, os.getpid()))


def _ended(end: Callable[..., Any], arguments: tuple[int, ...], parent: int) -> Any:
    assert os.getpid() != parent
    end(*arguments)
    raise AssertionError


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_killed_process_counts_as_too_little_memory_and_another_end_is_an_error(tones: Path, tmp_path: Path) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}")
    limit, arguments = MemoryLimit(settings, 2e9), (take_steps, settings, tried(settings, tmp_path)[0])
    assert not limit.run(*arguments, Ending(_kill, signal.SIGKILL))
    with refused(InputError, "status 7", cure="data.batch_seconds"):
        limit.run(*arguments, Ending(os._exit, 7))


@pytest.mark.parametrize("step", [[], ["data.step_seconds=40"]], ids=str)
def test_the_found_number_is_stored_resumed_from_and_trains_the_same(
    step: list[str], tones: Path, tmp_path: Path
) -> None:
    common = [*TINY, *tone_corpus(tones), "corpus.test=[]", "trainer.max_epochs=1", "num_threads=1", *step]
    auto = [*common, "data.batch_seconds=auto", f"run_dir={tmp_path / 'auto'}"]
    train(settings_with(*auto))
    stored = yaml.safe_load((tmp_path / "auto/config.yaml").read_text())
    number = stored["data"]["batch_seconds"]
    if step:
        accumulated = stored["trainer"]["accumulate_grad_batches"]
        assert accumulated > 1
        assert number * accumulated == pytest.approx(40)
    train(settings_with(*common, f"data.batch_seconds={number}", f"run_dir={tmp_path / 'number'}"))
    bundles = [(tmp_path / run / "bundle/weights.safetensors").read_bytes() for run in ("auto", "number")]
    assert bundles[0] == bundles[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryLimit, "_in_child", lambda *_: pytest.fail("a resumed run tries no batch"))
        train(settings_with(*auto))
        train(settings_with(*common, f"data.batch_seconds={number}", f"run_dir={tmp_path / 'auto'}"))
    assert yaml.safe_load((tmp_path / "auto/config.yaml").read_text())["data"]["batch_seconds"] == number


def test_a_plan_without_a_number_is_refused() -> None:
    with refused(InputError, "data.batch_seconds", got="auto", cure="asr.plan"):
        BatchBounds("auto", 8).hold(1.0, 1)
    assert MAX_SECONDS == 200


def test_the_limit_is_on_memory_in_addition_to_the_present() -> None:
    pid = os.fork()
    if pid == 0:
        limit_memory(200e6)
        torch.empty(int(100e6), dtype=torch.uint8)
        try:
            torch.empty(int(300e6), dtype=torch.uint8)
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
