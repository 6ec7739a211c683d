"""The batch plan: every utterance once, within the bounds, and the same whoever asks."""

from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.data.dataset import Item
from asr.data.sampler import (
    BatchBounds,
    BatchSampler,
    cut_batches,
    draw_factors,
    plan_evaluation,
    plan_training,
)
from asr.errors import InputError

BOUNDS = BatchBounds(batch_seconds=60, max_utterances=8)
Plan = list[list[list[int]]]

DURATIONS = st.lists(st.floats(0.1, 20), max_size=30)
LIMITS = st.builds(BatchBounds, st.floats(1, 60), st.integers(1, 6))


def random_durations(count: int) -> Tensor:
    return 1 + 14 * torch.rand(count, dtype=torch.float64)


def plan(durations: Tensor, bounds: BatchBounds = BOUNDS, **changes: float) -> Plan:
    arguments = {"jitter": 0.05, "seed": 0, "epoch": 0, "world_size": 1, **changes}
    return plan_training(durations, bounds, **arguments)


def holds(batch: list[int], durations: list[float], bounds: BatchBounds) -> bool:
    """Whether a batch keeps the bounds; one utterance alone always does."""
    padded_seconds = len(batch) * max(durations[index] for index in batch)
    return len(batch) == 1 or (padded_seconds <= bounds.batch_seconds and len(batch) <= bounds.max_utterances)


@settings(deadline=None)
@given(DURATIONS, LIMITS, st.randoms(use_true_random=False))
def test_batches_are_cut_where_the_next_utterance_would_break_a_bound_and_nowhere_else(
    durations: list[float], bounds: BatchBounds, shuffle: object
) -> None:
    order = list(range(len(durations)))
    shuffle.shuffle(order)
    batches = cut_batches(order, durations, bounds)
    assert list(chain.from_iterable(batches)) == order
    assert all(batches)
    assert all(holds(batch, durations, bounds) for batch in batches)
    for batch, following in pairwise(batches):
        assert not holds([*batch, following[0]], durations, bounds)


def test_an_utterance_longer_than_the_bound_is_a_batch_of_its_own() -> None:
    assert cut_batches([0, 1, 2], [1.0, 99.0, 1.0], BOUNDS) == [[0], [1], [2]]


@pytest.mark.parametrize(
    "bounds", [{"batch_seconds": 0, "max_utterances": 1}, {"batch_seconds": 1, "max_utterances": 0}]
)
def test_bounds_that_hold_nothing_are_an_error(bounds: dict[str, int]) -> None:
    given = f"got batch_seconds={bounds['batch_seconds']}, max_utterances={bounds['max_utterances']}"
    with pytest.raises(InputError, match=given):
        BatchBounds(**bounds)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [8, 57, 400])
def test_training_sees_every_utterance_once_in_as_many_batches_on_each_rank(count: int, world_size: int) -> None:
    durations = random_durations(count)
    steps = plan(durations, world_size=world_size)
    assert all(len(step) == world_size for step in steps)
    batches = list(chain.from_iterable(steps))
    assert all(batches)
    assert sorted(chain.from_iterable(batches)) == list(range(count))
    assert all(holds(batch, durations.tolist(), BOUNDS) for batch in batches)


def test_bounds_hold_for_the_durations_at_the_epochs_speeds() -> None:
    durations = random_durations(300)
    factors, _ = draw_factors([0.5, 1.0, 2.0], torch.ones(300, 3, dtype=torch.bool), seed=0, epoch=3)
    played = durations / factors
    batches = list(chain.from_iterable(plan(played, epoch=3)))
    assert all(holds(batch, played.tolist(), BOUNDS) for batch in batches)
    assert not all(holds(batch, durations.tolist(), BOUNDS) for batch in batches)


def test_a_plan_is_a_function_of_its_arguments_and_of_nothing_else() -> None:
    durations = random_durations(100)
    state = torch.get_rng_state()
    first = plan(durations, world_size=2)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12345)
    assert plan(durations, world_size=2) == first


def test_another_epoch_or_seed_has_other_mates_and_another_order() -> None:
    durations = random_durations(100)

    def mates(steps: Plan) -> set[frozenset[int]]:
        return {frozenset(batch) for batch in chain.from_iterable(steps)}

    first = plan(durations)
    for other in (plan(durations, epoch=1), plan(durations, seed=1)):
        assert len(mates(first) & mates(other)) < len(mates(first)) / 2


def test_ranks_work_side_by_side_on_batches_of_similar_length() -> None:
    """Without jitter, all of one step's utterances are shorter than all of another's: no rank waits for long."""
    durations = random_durations(500)
    steps = plan(durations, jitter=0.0, world_size=4)
    spans = sorted(
        (min(lengths), max(lengths)) for lengths in (durations[list(chain(*step))].tolist() for step in steps)
    )
    assert len(spans) > 10
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_mates_are_of_similar_length_but_steps_come_in_random_order() -> None:
    durations = random_durations(1000)
    steps = plan(durations)
    padded = sum(len(batch) * float(durations[batch].max()) for (batch,) in steps)
    assert padded < 1.15 * float(durations.sum())
    longest = [float(durations[batch].max()) for (batch,) in steps]
    rising = sum(before < after for before, after in pairwise(longest))
    assert 0.4 < rising / len(longest) < 0.6


def test_fewer_utterances_than_ranks_is_an_error() -> None:
    with pytest.raises(InputError, match="got 3 utterances for 4 ranks"):
        plan(random_durations(3), world_size=4)


def test_utterances_too_long_to_share_a_batch_whose_number_does_not_suit_the_ranks_are_an_error() -> None:
    """Three batches of one utterance cannot be halved to four: a rank would have nothing to do."""
    with pytest.raises(InputError, match=r"3 batches .* 2 ranks"):
        plan(torch.tensor([50.0, 50.0, 50.0]), world_size=2)


@settings(deadline=None)
@given(DURATIONS, LIMITS, st.integers(1, 5))
def test_evaluation_sees_every_utterance_once_over_all_ranks_longest_first(
    durations: list[float], bounds: BatchBounds, world_size: int
) -> None:
    shares = [plan_evaluation(durations, bounds, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(shares), "a rank without a batch would not come to where the ranks add up their errors"
    batches = [batch for batch in chain.from_iterable(shares) if batch]
    assert sorted(chain.from_iterable(batches)) == list(range(len(durations)))
    assert all(holds(batch, durations, bounds) for batch in batches)
    for share in shares:
        seen = [durations[index] for index in chain.from_iterable(share)]
        assert seen == sorted(seen, reverse=True)


FACTORS = (0.9, 1.0, 1.1)


def test_a_speed_at_which_the_tokens_do_not_fit_becomes_1_and_is_counted() -> None:
    everything = torch.ones(3000, 3, dtype=torch.bool)
    feasible = torch.rand(3000, 3) < 0.7
    drawn, kept_everything = draw_factors(FACTORS, everything, seed=0, epoch=4)
    factors, kept = draw_factors(FACTORS, feasible, seed=0, epoch=4)
    expected, not_fitting = [], 0
    for fits, factor in zip(feasible.tolist(), drawn.tolist(), strict=True):
        if fits[FACTORS.index(factor)]:
            expected.append(factor)
        else:
            expected.append(1.0)
            not_fitting += 1
    assert factors.tolist() == expected
    assert kept == not_fitting
    assert kept_everything == 0


def test_each_speed_is_drawn_equally_often_and_anew_in_each_epoch() -> None:
    everything = torch.ones(3000, 3, dtype=torch.bool)
    first, _ = draw_factors(FACTORS, everything, seed=0, epoch=0)
    for factor in FACTORS:
        assert abs(first.tolist().count(factor) - 1000) < 100  # four standard deviations
    assert torch.equal(draw_factors(FACTORS, everything, seed=0, epoch=0)[0], first)
    for other in (
        draw_factors(FACTORS, everything, seed=0, epoch=1),
        draw_factors(FACTORS, everything, seed=1, epoch=0),
    ):
        assert 0.2 < float((other[0] == first).double().mean()) < 0.5  # a third by chance


def test_the_sampler_hands_out_epoch_position_and_speed_of_each_utterance() -> None:
    factors = torch.tensor([1.0, 0.9, 1.1], dtype=torch.float64)
    sampler = BatchSampler([[2, 0], [1]], epoch=7, factors=factors)
    assert list(sampler) == [[Item(7, 2, 1.1), Item(7, 0, 1.0)], [Item(7, 1, 0.9)]]
    assert len(sampler) == 2
    assert list(BatchSampler([[1]])) == [[Item(0, 1, 1.0)]]
