"""Each optimizer resumes exactly and ignores weights without a gradient; its rates and its memory are reported."""

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.apps.doctor import learning_rates
from asr.apps.doctor.forecast import forecast, fresh_model
from asr.apps.doctor.learning_rates import range_test
from asr.apps.doctor.memory import FROZEN_ENCODER, FULL, LORA
from asr.base.settings.conf import default_settings
from asr.core import build
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.recognition.depths import places
from asr.core.training.task import TrainingTask
from asr.interfaces import WeightPlace
from asr.train import train
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, metrics, start
from tests.test_muon import MATRICES, PLACES, meta_model, random, take_steps, weights
from tests.test_precision import trained_in_two_parts

OPTIMIZERS = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
OWN_RULES = [name for name in OPTIMIZERS if name != "adamw"]  # AdamW's is torch's, with which all other tests train


def chosen_with_its_rate(name: str) -> list[str]:
    """Select an optimizer with the rate of its file, which TINY replaces."""
    return [f"optimizer={name}", f"optimizer.lr={default_settings('optimizer', name)['lr']}"]


def make(name: str, named: Mapping[str, nn.Parameter], **changed: Any) -> torch.optim.Optimizer:
    maker = build.component("optimizer", default_settings("optimizer", name) | changed)()
    made: torch.optim.Optimizer = maker(named.items(), PLACES)
    return made


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("done", range(1, 9))
def test_a_resumed_optimizer_takes_the_same_steps_from_any_step_of_a_cycle(done: int, optimizer: str) -> None:
    whole, begun = weights(), weights()
    take_steps(make(optimizer, whole), whole, range(10))
    interrupted = make(optimizer, begun)
    take_steps(interrupted, begun, range(done))
    state = copy.deepcopy(interrupted.state_dict())
    resumed = make(optimizer, begun)
    resumed.load_state_dict(state)
    take_steps(resumed, begun, range(done, 10))
    for name in whole:
        assert torch.equal(whole[name], begun[name]), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_without_a_gradient_are_left_alone_and_begin_their_cycle_later(optimizer: str) -> None:
    named, late = weights(), weights()
    made = make(optimizer, named)
    frozen = ["qkv.weight", "bias"]
    for step in range(3):
        for number, (name, weight) in enumerate(named.items()):
            weight.grad = None if name in frozen else random(weight.shape, 100 * step + number)
        made.step()
    for name in frozen:
        assert torch.equal(named[name], late[name]), name
    take_steps(made, named, range(3, 7))
    take_steps(make(optimizer, late), late, range(3, 7))
    for name in frozen:
        assert torch.equal(named[name], late[name]), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layer_decay_lowers_the_rate_of_matrices_and_of_other_weights(optimizer: str) -> None:
    named = weights()
    at = {**PLACES, "linear1.weight": WeightPlace(2, 1), "kernel.weight": WeightPlace(2, 0), "bias": WeightPlace(0, 0)}
    settings = default_settings("optimizer", optimizer) | {"lr": 0.1, "layer_decay": 0.5}
    groups = build.component("optimizer", settings)()(named.items(), at).param_groups
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    of_matrices = settings.get("matrix_factor", 1)
    for name, weight in named.items():
        factor = 0.5 ** (3 - at[name].depth) if name in at else 1
        assert rates[id(weight)] == pytest.approx(0.1 * factor * (of_matrices if name in MATRICES else 1)), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bytes_of_the_state_are_those_after_a_step(optimizer: str) -> None:
    config = resolved("encoder=conformer_xs", f"optimizer={optimizer}")
    model = meta_model("encoder=conformer_xs").to_empty(device="cpu").requires_grad_(True)
    model.encoder.get_parameter("subsampling.linear.weight").requires_grad_(False)
    made = build.build_optimizer(config, model, model.depths)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.zero_()
            weight.grad = torch.zeros_like(weight)
    made.step()
    state = [value for values in made.state.values() for value in values.values() if isinstance(value, Tensor)]
    assert build.optimizer_bytes(config, model, model.depths) == sum(value.nbytes for value in state)
    trained = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    matrices = sum(
        model.get_parameter(name).nbytes for name, place in places(model, model.depths).items() if place.matrices
    )
    moments = 2 * trained - (matrices if optimizer == "muon" else 0)
    assert sum(value.nbytes for value in state) == pytest.approx(moments, rel=1e-3)


def test_an_optimizer_that_reads_values_of_tensors_is_assumed_to_have_two_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, step = meta_model(), torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: self.param_groups[0]["params"][0].sum().item())
    expected = 2 * sum(weight.nbytes for weight in model.parameters())
    assert build.optimizer_bytes(resolved("optimizer=adamw"), model, model.depths) == expected
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    assert build.optimizer_bytes(resolved("optimizer=adamw"), model, model.depths) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("optimizer", OWN_RULES)
def test_the_memory_forecast_has_all_methods(optimizer: str, tones: Path, tmp_path: Path) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"optimizer={optimizer}", f"run_dir={tmp_path}")
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    model, utterances, _ = fresh_model(settings, corpus, corpus)
    facts = dict(fact for part in forecast(settings, utterances, model) for fact in part.facts)
    assert all(method in facts["tensors"] for method in (FULL, FROZEN_ENCODER, LORA))


@pytest.mark.parametrize("chosen", [["optimizer.layer_decay=0.5"], *map(chosen_with_its_rate, OWN_RULES)], ids=str)
def test_rates_of_the_doctor_and_of_the_log_are_those_of_optimizer_lr(
    chosen: list[str], tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", *chosen)
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    model, utterances, _ = fresh_model(settings, corpus, corpus)
    made: list[torch.optim.Optimizer] = []
    make = build.build_optimizer
    monkeypatch.setattr(build, "build_optimizer", lambda *given: made.append(make(*given)) or made[-1])
    monkeypatch.setattr(learning_rates, "NUM_STEPS", 3)
    test = range_test(settings, utterances, model, lambda _: None)
    head = id(model.head.get_parameter("ctc.linear.weight"))
    rates = {id(w): group["lr"] for group in made[0].param_groups for w in group["params"]}
    assert rates[head] == pytest.approx(test.rates[-1])
    assert test.rates[-1] >= 10 * settings.components["optimizer"]["lr"], (
        "the planned rate must be a possible suggestion"
    )


@pytest.mark.parametrize("optimizer", OWN_RULES)
@pytest.mark.parametrize("frozen", [[], ["init.frozen=[head.*,encoder.subsampling.*,*.bias,*norm*]"]], ids=str)
def test_the_logged_rate_is_that_of_optimizer_lr_even_if_only_matrices_are_trained(
    frozen: list[str], optimizer: str, tones: Path, tmp_path: Path
) -> None:
    given = [*TINY, *tone_corpus(tones), f"optimizer={optimizer}", "optimizer.lr=2e-3", "schedule.warmup_steps=1"]
    given += ["trainer.max_steps=5", "trainer.max_epochs=-1"]
    train(settings_with(*given, *frozen, "optimizer.layer_decay=0.5", f"run_dir={tmp_path / 'run'}"))
    assert max(float(row["train/learning_rate"]) for row in metrics(tmp_path / "run")) == pytest.approx(2e-3)


@pytest.mark.parametrize("optimizer", OWN_RULES)
@pytest.mark.parametrize(
    "chosen",
    [
        ["ema.decay=0.9", "encoder.block.dropout=0.1", "optimizer.layer_decay=0.9"],
        ["trainer.precision=bf16-mixed", "trainer.accumulate_grad_batches=2"],
        ["init.frozen=[encoder.blocks.0.*]", "init.frozen_steps=3"],
    ],
    ids=lambda chosen: chosen[0],
)
def test_a_run_resumes_exactly_within_a_cycle(chosen: list[str], optimizer: str, tones: Path, tmp_path: Path) -> None:
    trained_in_two_parts(tones, tmp_path, *chosen_with_its_rate(optimizer), *chosen)


@pytest.mark.parametrize("optimizer", OWN_RULES)
def test_two_processes_have_equal_weights(optimizer: str, tones: Path, tmp_path: Path) -> None:
    given = [*TINY, *tone_corpus(tones), *chosen_with_its_rate(optimizer), "trainer.strategy=ddp", "trainer.devices=2"]
    given += ["trainer.max_steps=6", "trainer.max_epochs=-1", "data.batch_seconds=3"]
    config = resolved(*given, f"run_dir={tmp_path / 'run'}")
    running = start(config, tmp_path / "log", world_size=2, before=partial(keep_last_weights, tmp_path))
    assert finish(running) == 0, (tmp_path / "log").read_text()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def keep_last_weights(folder: Path) -> None:
    """Make a process write its weights after each step."""

    def keep(task: TrainingTask, *_: Any) -> None:
        torch.save(dict(task.model.named_parameters()), folder / f"{task.global_rank}.pt")

    TrainingTask.on_train_batch_end = keep  # type: ignore[method-assign, assignment]
