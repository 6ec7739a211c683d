"""ScaledAdam: updates relative to the size of each tensor, whose scale is learnt, as in a reference and in icefall."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.components.optimizer.scaled_adam import ScaledAdam
from tests.icefall import imported, needs_icefall
from tests.test_muon import random, take_steps

LR, EPS, MIN_RMS, MAX_RMS, MAX_NUMBER = 0.045, 1e-8, 1e-5, 3.0, 10.0
SETTINGS: dict[str, Any] = {"lr": LR, "scale_factor": 0.1, "every": 4, "betas": [0.9, 0.98], "eps": EPS}
SETTINGS |= {"min_rms": MIN_RMS, "max_rms": MAX_RMS, "max_number": MAX_NUMBER, "layer_decay": 1.0}
CASES = {  # shape, and root mean square at the beginning
    "matrix": ((24, 8), 1.0),
    "matrix, nearly too large": ((6, 5), 0.99 * MAX_RMS),
    "matrix, too large": ((6, 5), 2 * MAX_RMS),
    "matrix, nearly too small": ((6, 5), 1.01 * MIN_RMS),
    "matrix, too small": ((6, 5), 0.1 * MIN_RMS),
    "kernel": ((8, 1, 3), 0.1),
    "vector": ((32,), 1.0),
    "vector of zeros": ((32,), 0.0),
    "number": ((), 1.0),
    "vector of one number": ((1,), 1.0),
    "kernel of one number, too large": ((1, 1, 1), 2 * MAX_NUMBER),
}


def weights(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    made = {}
    for number, (name, (shape, size)) in enumerate(CASES.items()):
        noise = random(shape, number).to(dtype)
        made[name] = nn.Parameter(noise * size / noise.square().mean().sqrt())
    return made


def make(named: Mapping[str, nn.Parameter], **changed: Any) -> torch.optim.Optimizer:
    return ScaledAdam(**{**SETTINGS, **changed})(named.items(), {})


def rms(numbers: list[float]) -> float:
    return math.sqrt(sum(number**2 for number in numbers) / len(numbers))


def moved(weight: Tensor, gradients: list[Tensor]) -> Tensor:
    """Move one weight, one number at a time."""
    numbers: list[float] = weight.double().flatten().tolist()
    has_scale, size = len(numbers) > 1, max(rms(numbers), MIN_RMS)
    updates, squares = [0.0] * len(numbers), [0.0] * len(numbers)
    of_scale: list[float] = []
    square_of_scale = 0.0
    for step, gradient in enumerate(gradients, start=1):
        slopes: list[float] = gradient.double().flatten().tolist()
        of_scale.append(sum(number * slope for number, slope in zip(numbers, slopes, strict=True)))
        growth = 0.0
        if has_scale and step % 4 == 0:
            recent, decay = of_scale[-4:], 0.98**4
            square_of_scale = decay * square_of_scale + (1 - decay) * sum(slope**2 for slope in recent) / 4
            root = math.sqrt(square_of_scale / (1 - decay ** (step // 4)))
            growth = max(-0.1, min(0.1, -0.1 * LR * sum(recent) / (root + EPS)))
            if rms(numbers) < MIN_RMS:
                growth = 0.0
            elif rms(numbers) * (1 + growth) > MAX_RMS:
                growth = MAX_RMS / rms(numbers) - 1
            size = max(rms(numbers), MIN_RMS)
        rate = LR * (size if has_scale else 0.1)
        for index, slope in enumerate(slopes):
            squares[index] = 0.98 * squares[index] + 0.02 * slope**2
            root = math.sqrt(squares[index] / (1 - 0.98**step))
            update = growth * numbers[index] - rate * slope / (root + EPS)
            updates[index] = 0.9 * updates[index] + 0.1 * update
        numbers = [number + update for number, update in zip(numbers, updates, strict=True)]
        if not has_scale:
            numbers = [max(-MAX_NUMBER, min(MAX_NUMBER, number)) for number in numbers]
    return torch.tensor(numbers, dtype=torch.float64).reshape(weight.shape)


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_weights_move_as_in_a_plain_reference(steps: int) -> None:
    named, optimized = weights(), weights()
    optimizer = make(optimized)
    gradients: dict[str, list[Tensor]] = {name: [] for name in CASES}
    for step in range(steps):
        take_steps(optimizer, optimized, [step])
        for name, weight in optimized.items():
            assert weight.grad is not None
            gradients[name].append(weight.grad)
    for name, weight in optimized.items():
        expected = moved(named[name].detach(), gradients[name])
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14, msg=name)


@needs_icefall
@pytest.mark.parametrize("steps", [1, 30])
def test_weights_move_as_in_icefall(steps: int) -> None:
    """In float32, as icefall's state is. After 228 steps, icefall drops a correction, then of less than 0.5 %."""
    ours, theirs = weights(torch.float32), weights(torch.float32)
    with imported(["optim"]) as modules:
        reference = modules["optim"].ScaledAdam(list(theirs.values()), lr=LR, clipping_scale=None)
        take_steps(make(ours), ours, range(steps))
        take_steps(reference, theirs, range(steps))
    for name, weight in ours.items():
        difference = (weight - theirs[name]).detach().abs().max()
        assert difference <= 1e-5 * theirs[name].detach().abs().max(), name


def test_a_tensor_of_another_size_moves_by_the_same_share() -> None:
    """A tensor 100 times as large has gradients 1 / 100 as large, which only `eps` sees."""
    small, large = ({"weight": nn.Parameter(size * random((6, 5), 0).double())} for size in (0.01, 1.0))
    optimizers = make(small, eps=1e-30), make(large, eps=1e-30)
    for step in range(30):
        for named, optimizer, size in zip((small, large), optimizers, (0.01, 1.0), strict=True):
            named["weight"].grad = random((6, 5), step).double() / size
            optimizer.step()
    torch.testing.assert_close(100 * small["weight"], large["weight"], rtol=1e-9, atol=0)
