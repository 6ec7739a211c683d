"""Muon: matrices in the encoder's blocks get orthogonal updates, all other weights AdamW's."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.apps.language_models.objective.language_model import LanguageModel
from asr.apps.pretrain.without_texts import WithoutTexts
from asr.base.settings.conf import default_settings
from asr.components.optimizer.adamw import AdamW
from asr.components.optimizer.muon import COEFFICIENTS, RMS, STEPS, Muon, newton_schulz, orthogonalised
from asr.core import build
from asr.core.recognition.depths import places
from asr.core.recognition.model import Model
from asr.errors import InputError
from asr.interfaces import WeightPlace
from tests.conftest import CONF, resolved
from tests.refusals import refused

SETTINGS: dict[str, Any] = {"lr": 0.1, "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.1, "layer_decay": 1.0}
OF_MUON = {"matrix_factor": 2.0, "momentum": 0.9, "every": 1}
MATRICES = {"qkv.weight": ((24, 8), 3), "linear1.weight": ((32, 8), 1), "linear2.weight": ((8, 32), 1)}
OTHERS = {"bias": (32,), "kernel.weight": (8, 1, 3), "embedding.weight": (8, 4), "head.weight": (5, 8)}
PLACES = {name: WeightPlace(1, number) for name, (_, number) in MATRICES.items()}
PLACES |= {name: WeightPlace(1, 0) for name in OTHERS if name != "head.weight"}
ENCODERS = sorted(path.stem for path in (CONF / "encoder").glob("*.yaml"))


def random(shape: Iterable[int], seed: int) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def weights() -> dict[str, nn.Parameter]:
    shapes = {name: shape for name, (shape, _) in MATRICES.items()} | OTHERS
    return {name: nn.Parameter(random(shape, number)) for number, (name, shape) in enumerate(shapes.items())}


def make(named: Mapping[str, nn.Parameter], **changed: Any) -> torch.optim.Optimizer:
    return Muon(**{**SETTINGS, **OF_MUON, **changed})(named.items(), PLACES)


def take_steps(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], steps: Iterable[int]) -> None:
    for step in steps:
        for number, weight in enumerate(named.values()):
            weight.grad = random(weight.shape, 100 * step + number).to(weight.dtype)
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
