"""Dropout: its frequency, the scale of the remaining values, and its random generator."""

import pytest
import torch

from asr.base.kernels.dropout import STEPS, Dropout
from asr.errors import InputError
from tests.refusals import refused


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_values_are_dropped_with_the_given_probability_and_the_mean_is_unchanged(p: float) -> None:
    torch.manual_seed(0)
    out = Dropout(p)(torch.ones(1000, 1001))  # four values share a random number; 4 does not divide 1001
    dropped = float((out == 0).double().mean())
    deviation = (p * (1 - p) / out.numel()) ** 0.5
    assert abs(dropped - p) < 5 * deviation + 0.5 / STEPS
    nonzero = out[out != 0]
    assert torch.equal(nonzero, nonzero[0].expand_as(nonzero))
    assert float(nonzero[0]) == pytest.approx(STEPS / round((1 - p) * STEPS), rel=1e-6)


def test_each_value_is_dropped_independently() -> None:
    torch.manual_seed(0)
    zero = (Dropout(0.5)(torch.ones(400, 1000)) == 0).double() - 0.5
    for shift in (1, 2, 3, 4, 8, 1000):  # neighbours share a random number; a shift of 1000 compares rows
        flat = zero.flatten()
        correlation = float((flat[:-shift] * flat[shift:]).mean() / 0.25)
        assert abs(correlation) < 5 / flat.numel() ** 0.5
    # The mean deviation of the column means equals the expectation for independent values.
    assert abs(float(zero.mean(dim=0).abs().mean()) - 0.5 * (2 / torch.pi / 400) ** 0.5) < 0.002


def test_the_gradient_passes_through_the_values_that_were_kept() -> None:
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * x, out, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_mask_depends_only_on_the_seed_of_torch(dtype: torch.dtype) -> None:
    x, dropout = torch.randn(3, 5, 7).to(dtype), Dropout(0.3)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(dropout(x))
    assert outs[0].dtype == dtype
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_in_evaluation_or_with_probability_0_dropout_is_the_identity() -> None:
    x = torch.randn(3, 4)
    state = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)
    assert Dropout(0.5)(torch.randn(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_outside_0_to_1_is_refused(p: float) -> None:
    with refused(InputError, "dropout ... be at least"):
        Dropout(p)
