"""Each activation of conf/encoder/block/activation equals its formula, value by value."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from asr.base.settings.conf import names
from asr.core.build import component

X = [-30.0, -3.0, -0.7, 0.0, 0.2, 1.0, 4.5, 30.0]


def swish(beta: float) -> Callable[[float], float]:
    """Compute Swish: arXiv:1710.05941, equation 1."""
    return lambda x: x / (1 + math.exp(-beta * x))


CASES: list[tuple[dict[str, Any], Callable[[float], float]]] = [
    ({"name": "relu"}, lambda x: max(x, 0.0)),
    ({"name": "gelu"}, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    *(({"name": name, "beta": beta}, swish(beta)) for name in ("swish", "learnt_swish") for beta in (0.0, 0.5, 1.0, 2)),
]


def test_every_activation_of_conf_has_a_formula_in_this_file() -> None:
    named = {*names("encoder/block/activation")}
    assert named == {config["name"] for config, _ in CASES}


@pytest.mark.parametrize(("config", "formula"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_an_activation_equals_its_formula(config: dict[str, Any], formula: Callable[[float], float]) -> None:
    activation = component("encoder/block/activation", config)().double()
    out = activation(torch.tensor(X, dtype=torch.float64))
    torch.testing.assert_close(out, torch.tensor([formula(x) for x in X], dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_trained_beta_has_the_gradient_of_the_formula_and_a_fixed_beta_is_not_a_parameter() -> None:
    learnt = component("encoder/block/activation", {"name": "learnt_swish", "beta": 1.5})().double()
    x = torch.tensor(X, dtype=torch.float64)
    learnt(x).sum().backward()
    step = 1e-6
    slope = sum((swish(1.5 + step)(value) - swish(1.5 - step)(value)) / (2 * step) for value in X)
    assert learnt.beta.grad.item() == pytest.approx(slope, abs=1e-8)
    assert not component("encoder/block/activation", {"name": "swish", "beta": 1.5})().state_dict()
