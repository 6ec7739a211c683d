"""Learning-rate schedules compared with their formulas."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.components.schedule.cosine import Cosine
from asr.components.schedule.noam import Noam
from asr.errors import InputError
from asr.interfaces import Moment, Schedule
from tests.refusals import refused


def at(step: int, total_steps: int) -> Moment:
    return Moment(step, total_steps, epoch=0.0)


def noam(warmup_steps: int) -> Noam:
    return Noam(warmup_steps=warmup_steps, warmup_fraction=None)


def cosine(warmup_steps: int, final_factor: float = 0.0) -> Cosine:
    return Cosine(warmup_steps=warmup_steps, warmup_fraction=None, final_factor=final_factor)


WARMUPS = pytest.mark.parametrize("warmup_steps", [1, 10, 400])
BOTH = pytest.mark.parametrize("make", [noam, cosine])


@given(st.integers(0, 10**6), st.integers(1, 20000))
def test_noam_equals_the_formula_of_the_paper_scaled_to_a_peak_of_1(step: int, warmup_steps: int) -> None:
    number = step + 1  # the paper counts from 1
    paper = min(number**-0.5, number * warmup_steps**-1.5)  # arXiv:1706.03762, section 5.3, without the model's dim
    assert noam(warmup_steps)(at(step, 0)) == pytest.approx(paper * warmup_steps**0.5, rel=1e-12)


@given(st.integers(0, 999), st.integers(1, 500), st.floats(0, 1))
def test_cosine_rises_linearly_and_falls_as_half_a_cosine(step: int, warmup_steps: int, final_factor: float) -> None:
    total_steps, number = 1000, step + 1
    if number <= warmup_steps:
        expected = number / warmup_steps
    else:
        angle = math.pi * (number - warmup_steps) / (total_steps - warmup_steps)
        expected = final_factor + (1 - final_factor) * (1 + math.cos(angle)) / 2
    actual = cosine(warmup_steps, final_factor=final_factor)(at(step, total_steps))
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


@BOTH
@WARMUPS
def test_the_peak_of_1_is_only_at_the_last_warm_up_step(make: Callable[[int], Schedule], warmup_steps: int) -> None:
    factors = [make(warmup_steps)(at(step, 1000)) for step in range(1000)]
    assert factors[warmup_steps - 1] == 1.0
    assert factors.count(1.0) == 1
    assert max(factors) == 1.0
    assert factors[:warmup_steps] == sorted(factors[:warmup_steps])
    assert factors[warmup_steps:] == sorted(factors[warmup_steps:], reverse=True)
    assert factors[0] == pytest.approx(1 / warmup_steps)  # the first step has a rate above 0


def test_without_warm_up_the_first_step_is_the_peak() -> None:
    assert noam(0)(at(0, 100)) == 1.0
    assert cosine(0, final_factor=0.1)(at(0, 100)) == 1.0


@pytest.mark.parametrize("final_factor", [0.0, 0.01, 0.5])
def test_cosine_ends_at_final_factor_and_stays_there(final_factor: float) -> None:
    schedule = cosine(10, final_factor=final_factor)
    for step in (99, 100, 101, 5000):
        assert schedule(at(step, 100)) == pytest.approx(final_factor, abs=1e-12)


def test_the_learning_rate_only_rises_in_a_run_that_ends_during_warm_up() -> None:
    schedule = cosine(100, final_factor=0.01)
    assert [schedule(at(step, 50)) for step in range(50)] == [(step + 1) / 100 for step in range(50)]


def test_noam_continues_after_the_planned_end() -> None:
    schedule = noam(100)
    assert schedule(at(399, 50)) == pytest.approx(0.5)  # four times the warm-up: half the peak


@pytest.mark.parametrize(("fraction", "total_steps", "warmup_steps"), [(0.1, 1000, 100), (0.05, 30, 2), (0.0, 30, 1)])
def test_a_warm_up_may_be_a_fraction_of_the_run(fraction: float, total_steps: int, warmup_steps: int) -> None:
    by_fraction: list[Schedule] = [
        Noam(warmup_steps=None, warmup_fraction=fraction),
        Cosine(warmup_steps=None, warmup_fraction=fraction, final_factor=0.1),
    ]
    for schedule, same in zip(by_fraction, [noam(warmup_steps), cosine(warmup_steps, 0.1)], strict=True):
        for step in range(total_steps):
            assert schedule(at(step, total_steps)) == same(at(step, total_steps))


@pytest.mark.parametrize(("steps", "fraction"), [(None, None), (10, 0.1)])
def test_a_warm_up_has_exactly_one_length(steps: int | None, fraction: float | None) -> None:
    with refused(InputError, f"schedule.warmup_steps ... schedule.warmup_fraction ... {steps} ... {fraction}"):
        Noam(warmup_steps=steps, warmup_fraction=fraction)
