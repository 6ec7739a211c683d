"""Muon: matrices in the encoder's blocks get orthogonal updates, all other weights AdamW's; runs resume exactly."""

import copy
from collections.abc import Iterable, Mapping
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
from asr.apps.language_models.objective.language_model import LanguageModel
from asr.apps.pretrain.without_texts import WithoutTexts
from asr.base.settings.conf import default_settings
from asr.components.optimizer.adamw import AdamW
from asr.components.optimizer.muon import COEFFICIENTS, RMS, STEPS, Muon, newton_schulz, orthogonalised
from asr.core import build
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.recognition.depths import places
from asr.core.recognition.model import Model
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from asr.interfaces import WeightPlace
from asr.train import train
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, metrics, start
from tests.refusals import refused
from tests.test_precision import trained_in_two_parts

SETTINGS: dict[str, Any] = {"lr": 0.1, "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.1, "layer_decay": 1.0}
OF_MUON = {"matrix_factor": 2.0, "momentum": 0.9, "every": 1}
MATRICES = {"qkv.weight": ((24, 8), 3), "linear1.weight": ((32, 8), 1), "linear2.weight": ((8, 32), 1)}
OTHERS = {"bias": (32,), "kernel.weight": (8, 1, 3), "embedding.weight": (8, 4), "head.weight": (5, 8)}
PLACES = {name: WeightPlace(1, number) for name, (_, number) in MATRICES.items()}
PLACES |= {name: WeightPlace(1, 0) for name in OTHERS if name != "head.weight"}
ENCODERS = sorted(path.stem for path in (CONF / "encoder").glob("*.yaml"))
MUON = [*TINY, "optimizer=muon", "optimizer.lr=2e-3"]


def random(shape: Iterable[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights() -> dict[str, nn.Parameter]:
    shapes = {name: shape for name, (shape, _) in MATRICES.items()} | OTHERS
    return {name: nn.Parameter(random(shape, number)) for number, (name, shape) in enumerate(shapes.items())}


def make(named: Mapping[str, nn.Parameter], **changed: Any) -> torch.optim.Optimizer:
    return Muon(**{**SETTINGS, **OF_MUON, **changed})(named.items(), PLACES)


def take_steps(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], steps: Iterable[int]) -> None:
    for step in steps:
        for number, weight in enumerate(named.values()):
            weight.grad = random(weight.shape, 100 * step + number)
        optimizer.step()


def by_singular_values(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x with the iteration applied to each singular value, and with all singular values 1; in float64."""
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    a, b, c = COEFFICIENTS
    values = s / s.square().sum(dim=-1, keepdim=True).sqrt()
    for _ in range(STEPS):
        values = a * values + b * values**3 + c * values**5
    return u @ values.diag_embed() @ v, u @ v


@pytest.mark.parametrize("shape", [(16, 16), (16, 24), (16, 32), (16, 64), (144, 576)], ids=str)
@pytest.mark.parametrize("decades", [0, 3, 6], ids="singular values over {} decades".format)
def test_the_iteration_applies_its_polynomial_to_each_singular_value(shape: tuple[int, int], decades: int) -> None:
    u, s, v = torch.linalg.svd(random((3, *shape), 0), full_matrices=False)
    x = u @ (s * torch.logspace(-decades, 0, shape[0])).diag_embed() @ v
    expected, orthogonal = by_singular_values(x)
    actual = newton_schulz(x).double()
    assert (actual - expected).abs().max() < 1e-3  # five steps of slope 3.4445 multiply rounding of float32 by 500
    if decades == 0:
        assert torch.linalg.matrix_norm(actual - orthogonal, 2).max() < 0.4


def test_tall_and_wide_matrices_have_updates_of_equal_size() -> None:
    shapes = [(8, 32), (32, 8), (8, 8), (8, 32)]
    given = [random(shape, number) for number, shape in enumerate(shapes)]
    for x, update in zip(given, orthogonalised(given), strict=True):
        expected = by_singular_values(x if len(x) <= 8 else x.mT)[0] * max(x.shape) ** 0.5
        torch.testing.assert_close(update.double(), expected if len(x) <= 8 else expected.mT, atol=1e-3, rtol=0)
        assert update.square().mean().sqrt() == pytest.approx(1, rel=0.2)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    assert not orthogonalised([torch.zeros(8, 32)])[0].any()


def test_matrices_move_as_with_torchs_muon() -> None:
    """torch computes the iteration in bfloat16, whose rounding (0.4 %) five steps increase."""
    ours, theirs = weights(), weights()
    names = ["linear1.weight", "linear2.weight"]
    settings = {"lr": 0.2, "weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}
    reference = torch.optim.Muon([theirs[name] for name in names], **settings)
    optimizer = make(ours)
    for step in range(3):
        before = {name: ours[name].detach().clone() for name in names}
        with torch.no_grad():
            for name in names:
                theirs[name].copy_(ours[name])
        take_steps(optimizer, ours, [step])
        for name in names:
            theirs[name].grad = ours[name].grad
        reference.step()
        for name in names:
            change = (theirs[name] - before[name]).norm()
            assert (ours[name] - theirs[name]).norm() < 0.05 * change, name


def test_stacked_matrices_move_as_separate_layers() -> None:
    named = weights()
    parts = {f"{part}.weight": nn.Parameter(rows.detach().clone()) for part, rows in split(named["qkv.weight"]).items()}
    optimizer = make(named)
    separate = Muon(**{**SETTINGS, **OF_MUON})(parts.items(), dict.fromkeys(parts, WeightPlace(1, 1)))
    for step in range(3):
        take_steps(optimizer, named, [step])
        assert named["qkv.weight"].grad is not None
        for name, rows in split(named["qkv.weight"].grad).items():
            parts[f"{name}.weight"].grad = rows
        separate.step()
    torch.testing.assert_close(named["qkv.weight"], torch.cat(list(parts.values())))


def split(qkv: Tensor) -> dict[str, Tensor]:
    return dict(zip("qkv", qkv.chunk(3), strict=True))


@pytest.mark.parametrize("changed", [{}, {"layer_decay": 0.5}], ids=str)
def test_the_other_weights_move_exactly_as_with_adamw(changed: dict[str, Any]) -> None:
    ours, theirs = weights(), weights()
    take_steps(make(ours, every=4, **changed), ours, range(5))
    take_steps(AdamW(**{**SETTINGS, **changed})(theirs.items(), PLACES), theirs, range(5))
    for name in OTHERS:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_a_matrix_moves_in_every_so_many_steps_by_the_mean_of_all_gradients(every: int) -> None:
    """The reference treats one weight at a time."""
    named = weights()
    optimizer = make(named, every=every)
    means = {name: torch.zeros(named[name].shape) for name in MATRICES}
    moved: dict[str, list[int]] = {name: [] for name in MATRICES}
    for step in range(3 * every):
        before = {name: named[name].detach().clone() for name in MATRICES}
        take_steps(optimizer, named, [step])
        for name, (_, number) in MATRICES.items():
            gradient = named[name].grad
            assert gradient is not None
            means[name] = 0.9 * means[name] + 0.1 * gradient
            if torch.equal(named[name], before[name]):
                continue
            moved[name].append(step)
            ahead = 0.9 * means[name] + 0.1 * gradient
            update = torch.cat([orthogonalised([part])[0] for part in ahead.chunk(number)])
            expected = before[name] * (1 - every * 0.2 * 0.1) - every * 0.2 * RMS * update
            torch.testing.assert_close(named[name].detach(), expected, atol=1e-4 * every, rtol=1e-4)
    for name, steps in moved.items():
        assert steps == list(range(steps[0], 3 * every, every)), name
    firsts = [steps[0] for steps in moved.values()]
    assert len(set(firsts)) == min(every, len(firsts)), "the matrices move in different steps"


def test_the_work_is_spread_over_the_steps_of_a_cycle() -> None:
    """Each block has an expensive matrix at the same place of a cycle."""
    named = {
        f"{block}.{name}": nn.Parameter(torch.zeros(shape))
        for block in range(8)
        for name, shape in {"a": (8, 8), "b": (64, 32), "c": (8, 8), "d": (8, 8)}.items()
    }
    optimizer = Muon(**{**SETTINGS, **OF_MUON, "every": 4})(named.items(), dict.fromkeys(named, WeightPlace(1, 1)))
    moved = []
    for step in range(4):
        before = {name: weight.detach().clone() for name, weight in named.items()}
        take_steps(optimizer, named, [step])
        moved.append(sum(not torch.equal(named[f"{b}.b"], before[f"{b}.b"]) for b in range(8)))
    assert moved == [2, 2, 2, 2]


@pytest.mark.parametrize("done", range(1, 9))
def test_a_resumed_optimizer_takes_the_same_steps_from_any_step_of_a_cycle(done: int) -> None:
    whole, begun = weights(), weights()
    take_steps(make(whole, every=4), whole, range(10))
    optimizer = make(begun, every=4)
    take_steps(optimizer, begun, range(done))
    state = copy.deepcopy(optimizer.state_dict())
    resumed = make(begun, every=4)
    resumed.load_state_dict(state)
    take_steps(resumed, begun, range(done, 10))
    for name in whole:
        assert torch.equal(whole[name], begun[name]), name


def test_weights_without_a_gradient_are_left_alone_and_begin_their_cycle_later() -> None:
    named, late = weights(), weights()
    optimizer = make(named, every=4)
    frozen = ["qkv.weight", "bias"]
    for step in range(3):
        for number, (name, weight) in enumerate(named.items()):
            weight.grad = None if name in frozen else random(weight.shape, 100 * step + number)
        optimizer.step()
    for name in frozen:
        assert torch.equal(named[name], late[name]), name
    take_steps(optimizer, named, range(3, 7))
    take_steps(make(late, every=4), late, range(3, 7))
    for name in frozen:
        assert torch.equal(named[name], late[name]), name


def test_layer_decay_lowers_the_rate_of_matrices_and_of_other_weights() -> None:
    named = weights()
    at = {**PLACES, "linear1.weight": WeightPlace(2, 1), "kernel.weight": WeightPlace(2, 0), "bias": WeightPlace(0, 0)}
    optimizer = Muon(**{**SETTINGS, **OF_MUON, "layer_decay": 0.5})(named.items(), at)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in named.items():
        factor = 0.5 ** (3 - at[name].depth) if name in at else 1
        assert rates[id(weight)] == pytest.approx(0.1 * factor * (2 if name in MATRICES else 1)), name


@pytest.mark.parametrize("encoder", ENCODERS)
def test_only_linear_layers_of_blocks_are_matrices(encoder: str) -> None:
    """Not kernels, embeddings, recurrent weights, biases, norms, the front-end and output layers."""
    model = meta_model(f"encoder={encoder}")
    blocks = {f"encoder.{name}." for name, _ in model.encoder.named_blocks()}
    actual = {name for name, place in places(model, model.depths).items() if place.matrices}
    expected = {
        f"{name}.weight"
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and any(name.startswith(block) for block in blocks)
    }
    assert actual == expected


PARTS = {  # files of conf/encoder/block: each part with a stacked weight, and the number of its matrices
    **{f"attention={path.stem}": 3 for path in (CONF / "encoder" / "block" / "attention").glob("*.yaml")},
    **{f"convolution={path.stem}": 2 for path in (CONF / "encoder" / "block" / "convolution").glob("*.yaml")},
}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_each_attention_and_each_convolution_states_its_matrices(part: str) -> None:
    """A weight is stacked if its layer has more outputs than inputs; the feed-forward layers are named otherwise."""
    group = part.partition("=")[0]
    model = meta_model("encoder=conformer_xs", f"encoder/block/{part}", "encoder.block.feed_forward_factor=4")
    at = places(model, model.depths)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    stacked = {
        at[f"{name}.weight"].matrices
        for name, layer in layers.items()
        if f".{group}." in name and layer.out_features > layer.in_features
    }
    assert stacked == {PARTS[part]}


@pytest.mark.parametrize("encoder", ["transformer", "transformer_xl", "w2v_bert_adapter_l"])
def test_other_blocks_state_their_matrices(encoder: str) -> None:
    model = meta_model(f"encoder={encoder}")
    at = places(model, model.depths)
    stacked = {name: at[name].matrices for name in at if name.endswith("qkv.weight")}
    assert stacked
    assert set(stacked.values()) == {3}


def test_a_wrong_number_of_matrices_is_refused() -> None:
    for wrong in ({"linear": 4}, {"other": 1}, {"linear": 0}):
        net = nn.Module()
        net.linear = nn.Linear(8, 6)
        net.stacked_matrices = wrong  # type: ignore[assignment]
        with refused(InputError, f"stacked_matrices ... {next(iter(wrong))}"):
            places(net, {"linear.weight": 1})


@pytest.mark.parametrize("chosen", ["encoder=lstm", "encoder=gru", "adapter=lora"])
def test_muon_is_accepted_where_no_linear_layers_of_blocks_are_trained(chosen: str) -> None:
    config = resolved(chosen, "optimizer=muon")
    build.check_components(config)
    LanguageModel().check(config | {"token_model": default_settings("token_model", "lstm")})
    WithoutTexts().check(config)


def test_without_linear_layers_in_blocks_it_computes_what_adamw_computes() -> None:
    def trained(name: str) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.LSTM(3, 4)
        optimizer = build.build_optimizer(resolved("encoder=lstm", f"optimizer={name}"), net, {})
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(6, 2, 3))[0].square().sum().backward()
            optimizer.step()
        return [weight.detach() for weight in net.parameters()]

    for ours, adamw in zip(trained("muon"), trained("adamw"), strict=True):
        torch.testing.assert_close(ours, adamw, rtol=0, atol=0)


def meta_model(*overrides: str) -> Model:
    """Return a model without memory for its weights."""
    config = resolved(*overrides)
    tokenizer, features = build.build_tokenizer(config), build.build_features(config)
    with torch.device("meta"):
        return build.build_model(config, tokenizer, features)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
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


def test_the_memory_forecast_has_all_methods(tones: Path, tmp_path: Path) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), "optimizer=muon", f"run_dir={tmp_path}")
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    model, utterances, _ = fresh_model(settings, corpus, corpus)
    facts = dict(fact for part in forecast(settings, utterances, model) for fact in part.facts)
    assert all(method in facts["tensors"] for method in (FULL, FROZEN_ENCODER, LORA))


@pytest.mark.parametrize("chosen", [["optimizer=muon"], ["optimizer.layer_decay=0.5"]], ids=str)
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


@pytest.mark.parametrize("frozen", [[], ["init.frozen=[head.*,encoder.subsampling.*,*.bias,*norm*]"]], ids=str)
def test_the_logged_rate_is_that_of_optimizer_lr_even_if_only_matrices_are_trained(
    frozen: list[str], tones: Path, tmp_path: Path
) -> None:
    given = [*MUON, *tone_corpus(tones), "trainer.max_steps=5", "trainer.max_epochs=-1", "schedule.warmup_steps=1"]
    train(settings_with(*given, *frozen, "optimizer.layer_decay=0.5", f"run_dir={tmp_path / 'run'}"))
    assert max(float(row["train/learning_rate"]) for row in metrics(tmp_path / "run")) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "chosen",
    [
        ["ema.decay=0.9", "encoder.block.dropout=0.1", "optimizer.layer_decay=0.9"],
        ["trainer.precision=bf16-mixed", "trainer.accumulate_grad_batches=2"],
        ["init.frozen=[encoder.blocks.0.*]", "init.frozen_steps=3"],
    ],
    ids=lambda chosen: chosen[0],
)
def test_a_run_resumes_exactly_within_a_cycle(chosen: list[str], tones: Path, tmp_path: Path) -> None:
    trained_in_two_parts(tones, tmp_path, "optimizer=muon", *chosen)


def test_two_processes_have_equal_weights(tones: Path, tmp_path: Path) -> None:
    given = [*MUON, *tone_corpus(tones), "trainer.strategy=ddp", "trainer.devices=2", "trainer.max_steps=6"]
    config = resolved(*given, "trainer.max_epochs=-1", "data.batch_seconds=3", f"run_dir={tmp_path / 'run'}")
    running = start(config, tmp_path / "log", world_size=2, before=partial(keep_last_weights, tmp_path))
    assert finish(running) == 0, (tmp_path / "log").read_text()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def keep_last_weights(folder: Path) -> None:
    """Make a process write its weights after each step."""

    def keep(task: TrainingTask, *_: Any) -> None:
        torch.save(dict(task.model.named_parameters()), folder / f"{task.global_rank}.pt")

    TrainingTask.on_train_batch_end = keep  # type: ignore[method-assign, assignment]
