"""The batch plan: each utterance once, batches within the limits, and equal numbers of batches on all ranks."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.core.data.batch_plan import (
    BatchBounds,
    BatchOrder,
    BatchSampler,
    Plan,
    Texts,
    changed_mates,
    cut_batches,
    draw_factors,
    plan_evaluation,
    plan_training,
)
from asr.core.data.dataset import Item
from asr.errors import InputError
from benchmarks.plan import TRAIN_MINI, draw_durations
from tests.conftest import needs_shared
from tests.refusals import refused

BOUNDS = BatchBounds(batch_seconds=60, max_utterances=8)
JITTER = 8.0  # as in conf/train.yaml

DURATIONS = st.lists(st.floats(0.1, 20), max_size=60)
SQUARED = st.none() | st.floats(1, 500)
LIMITS = st.builds(BatchBounds, st.floats(1, 60), st.integers(1, 40), SQUARED)


def random_durations(count: int) -> Tensor:
    return 1 + 14 * torch.rand(count, dtype=torch.float64)


def plan(
    durations: Tensor,
    bounds: BatchBounds = BOUNDS,
    jitter: float = JITTER,
    sorted_epochs: int = 0,
    **changes: int,
) -> Plan:
    arguments = {"seed": 0, "epoch": 0, "world_size": 1, **changes}
    return plan_training(durations, bounds, BatchOrder(jitter, sorted_epochs), **arguments)


def all_steps(plan: Plan) -> list[list[list[int]]]:
    """Return a list of indices for each [step][rank]."""
    return [[plan.batch(step, rank) for rank in range(plan.world_size)] for step in range(len(plan))]


def all_batches(plan: Plan) -> list[list[int]]:
    return list(chain.from_iterable(all_steps(plan)))


def holds(batch: list[int], durations: list[float], bounds: BatchBounds) -> bool:
    """Return whether a batch is within the bounds; a batch of one utterance always is."""
    longest, number = max(durations[index] for index in batch), len(batch)
    squared = bounds.max_squared_seconds is None or longest * longest * number <= bounds.max_squared_seconds
    return number == 1 or (longest * number <= bounds.batch_seconds and number <= bounds.max_utterances and squared)


def cut_in_a_loop(order: list[int], durations: list[float], bounds: BatchBounds) -> list[list[int]]:
    """Add each utterance to the last batch if that batch then still meets the limits; otherwise begin another batch."""
    batches: list[list[int]] = []
    for index in order:
        if batches and holds([*batches[-1], index], durations, bounds):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


@settings(deadline=None)
@given(DURATIONS, LIMITS)
def test_a_batch_ends_exactly_where_the_next_utterance_would_exceed_a_limit(
    durations: list[float], bounds: BatchBounds
) -> None:
    edges = cut_batches(torch.tensor(durations, dtype=torch.float64), bounds).tolist()
    batches = [list(range(start, end)) for start, end in pairwise(edges)]
    assert batches == cut_in_a_loop(list(range(len(durations))), durations, bounds)


def test_an_utterance_longer_than_the_limit_is_a_batch_of_its_own() -> None:
    assert cut_batches(torch.tensor([1.0, 99.0, 1.0]), BOUNDS).tolist() == [0, 1, 2, 3]


def test_the_quadratic_limit_reduces_only_batches_of_long_utterances() -> None:
    """Both batches are 60 s: 4 utterances of 15 s are 4 * 15**2 = 900 square seconds, and 60 of 1 s are 60."""
    durations = torch.tensor([15.0] * 8 + [1.0] * 120, dtype=torch.float64)
    bounds = BatchBounds(batch_seconds=60, max_utterances=100, max_squared_seconds=450)
    assert cut_batches(durations, bounds).diff().tolist() == [2, 2, 2, 2, 60, 60]


NUMBERS = st.lists(st.tuples(st.floats(0.1, 20), st.integers(1, 40)), max_size=60)


def cells_of(seconds: Tensor, tokens: Tensor) -> Tensor:
    return seconds.floor() * (tokens + 1)


@settings(deadline=None)
@given(NUMBERS, LIMITS, st.floats(1, 2000))
def test_cells_are_computed_from_the_longest_audio_and_the_longest_text_of_the_batch(
    sizes: list[tuple[float, int]], limits: BatchBounds, max_cells: float
) -> None:
    bounds = replace(limits, max_cells=max_cells)
    durations, tokens = (torch.tensor([size[n] for size in sizes], dtype=torch.float64) for n in (0, 1))
    edges = cut_batches(durations, bounds, Texts(tokens, cells_of)).tolist()
    batches: list[list[int]] = []
    for index in range(len(sizes)):
        grown = [*batches[-1], index] if batches else [index]
        longest, most = max(int(sizes[member][0]) for member in grown), max(sizes[member][1] for member in grown)
        fits = longest * (most + 1) * len(grown) <= max_cells
        if len(grown) > 1 and fits and holds(grown, durations.tolist(), limits):
            batches[-1] = grown
        else:
            batches.append([index])
    assert [list(range(start, end)) for start, end in pairwise(edges)] == batches


def test_batches_of_all_ranks_stay_within_the_limit_of_cells() -> None:
    durations, tokens = random_durations(300), torch.randint(1, 60, (300,)).double()
    bounds = BatchBounds(60, 8, None, 1000)
    planned = plan_training(
        durations, bounds, BatchOrder(JITTER, 0), seed=0, epoch=0, world_size=2, texts=Texts(tokens, cells_of)
    )
    batches = all_batches(planned)
    assert sorted(chain(*batches)) == list(range(300))
    for batch in batches:
        cells = float(cells_of(durations[batch].max(), tokens[batch].max()))
        assert len(batch) == 1 or cells * len(batch) <= 1000


@pytest.mark.parametrize("seconds", [1.0, 7.5, 30.0, 60.0])
@pytest.mark.parametrize("number", [1, 2, 8, 9])
def test_numbers_and_tensors_are_compared_with_the_same_limits(seconds: float, number: int) -> None:
    bounds = BatchBounds(batch_seconds=60, max_utterances=8, max_squared_seconds=900)
    holds_numbers = bounds.hold(seconds, number)
    assert holds_numbers is bool(bounds.hold(torch.tensor([seconds]), torch.tensor([number])))
    assert holds_numbers is (seconds * number <= 60 and number <= 8 and seconds * seconds * number <= 900)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0, 1), "data.batch_seconds; got 0"),
        ((1, 0), "data.max_utterances; got 0"),
        ((1, 1, 0.0), "data.max_squared_seconds; got 0.0"),
    ],
)
def test_limits_that_permit_no_utterance_are_an_error(bounds: tuple[int, ...], message: str) -> None:
    with refused(InputError, message):
        BatchBounds(*bounds)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [8, 57, 400])
@pytest.mark.parametrize("squared", [None, 300.0])
def test_training_sees_every_utterance_once_and_every_rank_has_the_same_number_of_batches(
    count: int, world_size: int, squared: float | None
) -> None:
    durations, bounds = random_durations(count), BatchBounds(60, 8, squared)
    steps = all_steps(plan(durations, bounds, world_size=world_size))
    assert len(steps) == len(plan(durations, bounds, world_size=world_size))
    batches = list(chain.from_iterable(steps))
    assert all(batches)
    assert sorted(chain.from_iterable(batches)) == list(range(count))
    assert all(holds(batch, durations.tolist(), bounds) for batch in batches)


def split_in_a_loop(batches: list[list[int]], divisor: int) -> list[list[int]]:
    while len(batches) % divisor:
        fullest = max(range(len(batches)), key=lambda number: len(batches[number]))
        half = len(batches[fullest]) // 2
        batches[fullest : fullest + 1] = [batches[fullest][:half], batches[fullest][half:]]
    return batches


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 20), min_size=60, max_size=120), st.integers(1, 20))
def test_the_fullest_batches_are_halved_until_all_ranks_have_the_same_number(
    durations: list[float], world_size: int
) -> None:
    order = sorted(range(len(durations)), key=lambda index: durations[index])
    expected = split_in_a_loop(cut_in_a_loop(order, durations, BOUNDS), world_size)
    planned = plan(torch.tensor(durations, dtype=torch.float64), jitter=0.0, world_size=world_size)
    assert sorted(all_batches(planned)) == sorted(expected)


def test_limits_apply_to_durations_at_the_speeds_of_the_epoch() -> None:
    durations = random_durations(300)
    speeds, _ = draw_factors([0.5, 1.0, 2.0], torch.ones(300, 3, dtype=torch.bool), seed=0, epoch=3)
    played = speeds.played(durations)
    batches = all_batches(plan(played, epoch=3))
    assert all(holds(batch, played.tolist(), BOUNDS) for batch in batches)
    assert not all(holds(batch, durations.tolist(), BOUNDS) for batch in batches)


def test_a_plan_depends_only_on_its_arguments() -> None:
    durations = random_durations(100)
    state = torch.get_rng_state()
    first = all_steps(plan(durations, world_size=2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12345)
    assert all_steps(plan(durations, world_size=2)) == first


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}, {"part": 1}])
def test_batches_and_their_order_change_with_the_epoch_the_seed_and_the_part(change: dict[str, int]) -> None:
    durations = random_durations(1000)
    first, other = plan(durations), plan(durations, **change)
    assert changed_mates(first, other) > 0.8
    same = sum(set(mine) == set(theirs) for mine, theirs in zip(all_batches(first), all_batches(other), strict=False))
    assert same < 3


def test_ranks_process_batches_of_similar_length_at_the_same_time() -> None:
    """Without jitter, the durations of different steps do not overlap, so no rank waits for long."""
    durations = random_durations(500)
    steps = all_steps(plan(durations, jitter=0.0, world_size=4))
    spans = sorted(
        (min(lengths), max(lengths)) for lengths in (durations[list(chain(*step))].tolist() for step in steps)
    )
    assert len(spans) > 10
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_steps_are_in_random_order() -> None:
    durations = random_durations(1000)
    longest = [float(durations[batch].max()) for batch in all_batches(plan(durations))]
    rising = sum(before < after for before, after in pairwise(longest))
    assert 0.4 < rising / len(longest) < 0.6


def test_the_first_epochs_are_sorted_from_short_to_long_utterances() -> None:
    durations = random_durations(1000)
    for epoch, is_sorted in ((0, True), (1, True), (2, False)):
        planned = plan(durations, jitter=0.0, epoch=epoch, sorted_epochs=2, world_size=2)
        longest = [float(durations[list(chain(*step))].max()) for step in all_steps(planned)]
        assert (longest == sorted(longest)) == is_sorted
        assert sorted(chain(*all_batches(planned))) == list(range(1000))


def padding(planned: Plan, durations: Tensor) -> float:
    padded = sum(len(batch) * float(durations[batch].max()) for batch in all_batches(planned))
    return 1 - float(durations.sum()) / padded


@needs_shared
@pytest.mark.parametrize("world_size", [1, 8])
def test_librispeech_is_padded_by_at_most_3_percent_and_at_least_90_percent_of_batch_mates_change(
    world_size: int,
) -> None:
    durations = draw_durations(28_000, TRAIN_MINI)
    bounds = BatchBounds(batch_seconds=200, max_utterances=256)
    first, second = (plan(durations, bounds, epoch=epoch, world_size=world_size) for epoch in (0, 1))
    assert padding(first, durations) < 0.03
    assert changed_mates(first, second) > 0.9


@pytest.mark.parametrize("count", [100, 300, 1500])
def test_a_small_corpus_also_needs_little_padding(count: int) -> None:
    """Batches have about five utterances; jitter is limited, because it would otherwise undo the sorting."""
    durations = random_durations(count)
    first, second = plan(durations, jitter=1e9), plan(durations, jitter=1e9, epoch=1)
    assert padding(first, durations) < 0.15  # in random order the padding would be a third
    assert changed_mates(first, second) > 0.75


def test_the_change_of_batch_mates_is_the_mean_share_of_mates_lost_per_utterance() -> None:
    durations = random_durations(80)
    first, second = plan(durations), plan(durations, epoch=1)
    before, after = ({index: set(batch) for batch in all_batches(each) for index in batch} for each in (first, second))
    lost = [len(before[index] - after[index]) / (len(before[index]) - 1) for index in before if len(before[index]) > 1]
    assert changed_mates(first, second) == pytest.approx(sum(lost) / len(lost), abs=1e-12)
    assert changed_mates(first, first) == 0.0


def test_planning_does_not_iterate_over_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations over utterances are vectorised; there are only loops over batches."""
    from asr.core.data import batch_plan as sampler

    calls = 0

    def counting(function: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return counted

    monkeypatch.setattr(sampler.BatchBounds, "hold", counting(BatchBounds.hold))
    durations = random_durations(100_000)
    planned = plan(durations, BatchBounds(batch_seconds=200, max_utterances=256), world_size=8)
    assert calls <= 8, "one for each doubling up to 256 utterances"
    assert torch.equal(planned.order.sort().values, torch.arange(100_000))


def test_the_method_first_steps_returns_the_utterances_of_those_steps() -> None:
    planned = plan(random_durations(200), world_size=3)
    for number in (0, 1, 5, len(planned)):
        expected = sorted(chain(*chain(*all_steps(planned)[:number])))
        assert sorted(planned.first_steps(number).tolist()) == expected


def test_negative_jitter_is_an_error() -> None:
    with refused(InputError, "data.jitter", got=-1):
        plan(random_durations(3), jitter=-1)


def test_fewer_utterances_than_ranks_is_an_error() -> None:
    with refused(InputError, "ranks; got 3 utterances for 4 ranks"):
        plan(random_durations(3), world_size=4)


def test_batches_of_one_utterance_are_an_error_if_they_cannot_be_divided_equally_among_ranks() -> None:
    """Three batches of one utterance cannot be split to give four, so a rank would have no work in the last step."""
    with refused(InputError, "3 batches ... 2 ranks"):
        plan(torch.tensor([50.0, 50.0, 50.0], dtype=torch.float64), world_size=2)


@settings(deadline=None)
@given(DURATIONS, LIMITS, st.integers(1, 5))
def test_all_ranks_together_evaluate_every_utterance_once_and_each_begins_with_its_longest(
    durations: list[float], bounds: BatchBounds, world_size: int
) -> None:
    shares = [plan_evaluation(durations, bounds, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(shares), "a rank without a batch would miss the reduction of errors"
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
    speeds, num_unchanged = draw_factors(FACTORS, feasible, seed=0, epoch=4)
    expected, not_fitting = [], 0
    for fits, factor in zip(feasible.tolist(), drawn.of(slice(None)).tolist(), strict=True):
        if fits[FACTORS.index(factor)]:
            expected.append(factor)
        else:
            expected.append(1.0)
            not_fitting += 1
    assert speeds.of(slice(None)).tolist() == expected
    assert num_unchanged == not_fitting
    assert kept_everything == 0


def test_speeds_are_uniform_and_drawn_again_in_each_epoch() -> None:
    everything = torch.ones(3000, 3, dtype=torch.bool)

    def drawn(seed: int, epoch: int) -> torch.Tensor:
        speeds, _ = draw_factors(FACTORS, everything, seed=seed, epoch=epoch)
        return speeds.of(slice(None))

    first = drawn(0, 0)
    for factor in FACTORS:
        assert abs(first.tolist().count(factor) - 1000) < 100  # four standard deviations
    assert torch.equal(drawn(0, 0), first)
    for other in (drawn(0, 1), drawn(1, 0)):
        assert 0.2 < float((other == first).double().mean()) < 0.5  # a third of the speeds agree by chance


def test_evaluation_uses_each_utterance_at_its_original_speed() -> None:
    sampler = BatchSampler([[2, 0], [1]])
    assert list(sampler) == [[Item(0, 2, 1.0), Item(0, 0, 1.0)], [Item(0, 1, 1.0)]]
    assert len(sampler) == 2
