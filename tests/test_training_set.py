"""The training set: utterances dropped and why, and epochs resumed on the same or another number of processes."""

import math
from dataclasses import replace
from itertools import chain

import pytest
import torch

from asr.base.settings.read import read
from asr.components.augment.speed_perturb import SpeedPerturb
from asr.core.build import build_features
from asr.core.data.dataset import Item, Reference, SpeedPerturbation
from asr.core.data.epoch_plan import EpochPlan, EpochSampler
from asr.core.data.manifest import Utterance
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.data.settings import PlanSettings
from asr.core.data.training_set import RunBounds, TrainingSet
from asr.errors import InputError
from tests.conftest import resolved
from tests.refusals import refused

SAMPLE_RATE = 16000
SPEED = SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1])
FEATURES = build_features(resolved())
REFERENCE = Reference(lambda text: [ord(letter) for letter in text], len, lambda frames: frames)
SETTINGS = {
    "batch_seconds": 30.0,
    "max_utterances": 16,
    "max_squared_seconds": None,
    "max_cells": None,
    "min_seconds": 0.1,
    "max_seconds": 12.0,
    "max_train_utterances": None,
    "jitter": 8.0,
    "sorted_epochs": 0,
}


def utterances(count: int) -> list[Utterance]:
    draw = torch.Generator().manual_seed(3)
    seconds = 1 + 9 * torch.rand(count, generator=draw, dtype=torch.float64)
    return [
        Utterance(f"{number}.wav", duration, "hello", f"u{number}") for number, duration in enumerate(seconds.tolist())
    ]


def training_set(
    given: list[Utterance], speed: SpeedPerturbation | None = SPEED, seed: int = 7, **settings: float | None
) -> TrainingSet:
    return TrainingSet(given, FEATURES, REFERENCE, speed, seed, read(PlanSettings, SETTINGS | settings, "data"))


def steps(plan: EpochPlan) -> list[list[list[Item]]]:
    """Return the items of each rank's batch in each step, indexed by [step][rank]."""
    return [[plan.items(step, rank) for rank in range(plan.plan.world_size)] for step in range(len(plan))]


def seen(batches: list[list[list[Item]]]) -> list[int]:
    return sorted(item.row for item in chain(*chain(*batches)))


def test_utterances_that_cannot_be_trained_on_are_dropped_by_reason() -> None:
    given = [
        Utterance("a", 3.0, "good", "a"),
        Utterance("b", 3.0, "", "b"),
        Utterance("c", 13.0, "long", "c"),
        Utterance("d", 0.05, "s", "d"),
        Utterance("e", 0.5, "x" * 100, "e"),
        Utterance("f", 14.0, "long", "f"),
    ]
    dataset = training_set(given)
    assert dataset.num_given == 6
    assert [utterance.id for utterance in dataset.utterances] == ["a"]
    assert [list(dropped.ids) for dropped in dataset.dropped.values()] == [["b"], ["c", "f"], ["d"], ["e"]]
    starts = ("the text is empty", "longer than 12 s", "shorter than data.min_seconds=0.1", "the text is too long")
    assert all(reason.startswith(start) for reason, start in zip(dataset.dropped, starts, strict=True))


def test_max_utterances_counts_only_utterances_that_can_be_trained_on() -> None:
    given = utterances(5)
    given[1] = Utterance("long", 13.0, "long", "long")
    chosen = training_set(given, max_train_utterances=3)
    assert [utterance.id for utterance in chosen.utterances] == ["u0", "u2", "u3"]
    reason, dropped = chosen.dropped.popitem()
    assert (reason, list(dropped.ids)) == ("beyond the first data.max_train_utterances=3", ["u4"])


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_epoch_sees_every_utterance_once_at_one_of_the_speeds(world_size: int) -> None:
    plan = training_set(utterances(200)).epoch(start_of_epoch(2, world_size))
    assert seen(steps(plan)) == list(range(200))
    items = list(chain(*chain(*steps(plan))))
    assert {item.factor for item in items} == {0.9, 1.0, 1.1}
    assert {item.epoch for item in items} == {2}


def test_batches_keep_the_limits_at_the_speeds_of_their_utterances() -> None:
    given = utterances(200)
    plan = training_set(given, max_squared_seconds=150.0).epoch(start_of_epoch(0, 2))
    for batch in chain(*steps(plan)):
        longest = max(given[item.row].duration / item.factor for item in batch)
        assert longest * len(batch) <= 30 + 1e-9
        assert longest**2 * len(batch) <= 150 + 1e-9
        assert len(batch) <= 16


def test_batches_keep_the_limit_on_cells_at_their_speeds_and_larger_utterances_are_dropped() -> None:
    draw = torch.Generator().manual_seed(5)
    given = [
        replace(utterance, text="x" * int(torch.randint(1, 80, (1,), generator=draw))) for utterance in utterances(200)
    ]
    reference = replace(REFERENCE, cells=lambda frames, tokens: frames * (tokens + 1))
    settings = read(PlanSettings, SETTINGS | {"max_cells": 60_000}, "data")
    data = TrainingSet(given, FEATURES, reference, SPEED, 0, settings)

    def cells(seconds: float, text: str) -> int:
        return FEATURES.num_frames(round(seconds * SAMPLE_RATE)) * (len(text) + 1)

    [reason] = data.dropped
    assert "more than 60,000 elements" in reason
    too_large = [utterance for utterance in given if cells(utterance.duration, utterance.text) > 60_000]
    assert list(data.dropped[reason].ids) == [utterance.id for utterance in too_large]
    plan = data.epoch(start_of_epoch(1, 1))
    sizes = []
    for step in range(len(plan)):
        batch = [(data.utterances[item.row], item.factor) for item in plan.items(step, 0)]
        longest = max(utterance.duration / factor for utterance, factor in batch)
        sizes.append(len(batch) * cells(longest, max((utterance.text for utterance, _ in batch), key=len)))
    assert max(sizes) <= 60_000
    assert sizes.index(max(sizes)) in plan.largest(), "the trial of memory uses this batch"


def test_a_summary_equals_the_sum_over_its_batches() -> None:
    given = utterances(200)
    plan = training_set(given).epoch(start_of_epoch(0, 3))
    batches = list(chain(*steps(plan)))
    played = [[given[item.row].duration / item.factor for item in batch] for batch in batches]
    padded = [len(seconds) * max(seconds) for seconds in played]
    total = sum(map(sum, played))
    summary = plan.summary()
    assert (summary.steps, summary.batches, summary.utterances) == (len(plan), len(batches), 200)
    assert summary.hours == pytest.approx(total / 3600)
    assert summary.padding == pytest.approx(1 - total / sum(padded))
    assert summary.longest.padded_seconds == pytest.approx(max(padded))
    assert summary.longest.utterances == len(played[padded.index(max(padded))])
    assert summary.shortest.padded_seconds == pytest.approx(min(padded))


def test_the_largest_steps_are_those_with_the_most_seconds_and_the_most_squared_seconds() -> None:
    given = utterances(200)
    plan = training_set(given).epoch(start_of_epoch(0, 2))
    longest = [
        [max(given[item.row].duration / item.factor for item in batch) for batch in step] for step in steps(plan)
    ]
    for power in (1, 2):
        sizes = [
            max(seconds**power * len(batch) for seconds, batch in zip(row, step, strict=True))
            for row, step in zip(longest, steps(plan), strict=True)
        ]
        assert sizes.index(max(sizes)) in plan.largest()
    assert 1 <= len(plan.largest()) <= 2


def test_requesting_a_plan_again_gives_the_same_plan() -> None:
    position = Position(1, (Share(2, 3), Share(3, 0)))
    dataset, duplicate = training_set(utterances(150)), training_set(utterances(150))
    first = steps(dataset.epoch(position))
    dataset.epoch(start_of_epoch(0, 1))
    torch.manual_seed(99)
    assert steps(dataset.epoch(position)) == steps(duplicate.epoch(position)) == first


@pytest.mark.parametrize("batches", [0, 1, 7])
def test_resuming_with_the_same_number_of_processes_continues_the_same_plan(batches: int) -> None:
    data = training_set(utterances(150))
    whole = data.epoch(start_of_epoch(4, 2))
    rest = data.epoch(Position(4, (Share(2, batches),)))
    for rank in range(2):
        sampler = EpochSampler(rest, rank, batches)
        assert list(sampler) == list(EpochSampler(whole, rank))[batches:]
        assert len(sampler) == len(whole)


@pytest.mark.parametrize(
    "shares", [[(1, 5), (2, 0)], [(2, 4), (3, 3), (1, 0)], [(4, 0), (2, 0)], [(2, 3), (3, 1), (2, 2), (5, 0)]]
)
def test_after_each_change_of_the_number_of_processes_the_rest_of_the_epoch_is_seen_exactly_once(
    shares: list[tuple[int, int]],
) -> None:
    data = training_set(utterances(300))
    everything: list[list[list[Item]]] = []
    for part in range(len(shares)):
        earlier = [Share(*share) for share in shares[:part]]
        planned = steps(data.epoch(Position(0, (*earlier, Share(shares[part][0], 0)))))
        assert all(all(step) for step in planned), "each process has an utterance in each step"
        everything += planned[: shares[part][1]] if part < len(shares) - 1 else planned
    assert seen(everything) == list(range(300))
    factors = data.epoch(start_of_epoch(0, 1)).speeds.of(slice(None))
    assert all(item.factor == factors[item.row] for item in chain(*chain(*everything)))


def test_each_part_of_an_epoch_is_planned_again_even_for_an_earlier_number_of_processes() -> None:
    data = training_set(utterances(150))
    assert steps(data.epoch(Position(0, (Share(1, 0), Share(2, 0))))) != steps(data.epoch(start_of_epoch(0, 2)))


def test_having_fewer_remaining_utterances_than_processes_is_an_error() -> None:
    data = training_set(utterances(40))
    plan = data.epoch(start_of_epoch(0, 1))
    left = len(plan.items(len(plan) - 1, 0))
    position = Position(0, (Share(1, len(plan) - 1), Share(left + 1, 0)))
    with refused(InputError, f"epoch 1 ... {left} utterances left ... {left + 1} processes"):
        data.epoch(position)


def test_a_position_beyond_the_plan_is_an_error_because_the_data_must_have_changed() -> None:
    with refused(InputError, "999 completed batches of 9 in epoch 3"):
        training_set(utterances(40)).epoch(Position(2, (Share(1, 999),)))


def test_utterances_that_would_be_too_long_if_slowed_keep_speed_1_and_are_counted() -> None:
    given = [Utterance(f"{number}.wav", 11.5, "hello", f"u{number}") for number in range(60)]
    plan = training_set(given, batch_seconds=12.0).epoch(start_of_epoch(0, 1))
    assert 0.9 not in plan.speeds.of(slice(None)).tolist()
    unbound = training_set(given).epoch(start_of_epoch(0, 1))
    assert plan.kept_speed == unbound.speeds.of(slice(None)).tolist().count(0.9) > 0


def test_the_frames_of_an_item_are_those_of_its_audio_at_its_speed() -> None:
    data = training_set([Utterance("a", 2.5, "hello", "a")])
    waveform = torch.randn(int(2.5 * SAMPLE_RATE))
    for factor in SPEED.factors:
        assert data.num_frames(Item(0, 0, factor)) == len(FEATURES.energies(SPEED(waveform, factor)))


def test_a_training_set_without_usable_utterances_is_an_error_that_gives_the_reasons() -> None:
    with refused(InputError, "training utterance ... 40 ... 0.5"):
        training_set(utterances(40), max_seconds=0.5)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_steps_of_a_run_are_the_sum_over_all_its_epochs(world_size: int, accumulate: int, seed: int) -> None:
    dataset = training_set(utterances(300), seed=seed)
    epochs = [len(dataset.epoch(start_of_epoch(epoch, world_size))) for epoch in range(20)]
    assert len(set(epochs)) > 1, "epochs must have different numbers of batches"
    steps_of = [-(-batches // accumulate) for batches in epochs]
    for max_epochs in (1, 2, 20):
        total = dataset.total_steps(start_of_epoch(0, world_size), 0, RunBounds(max_epochs, -1, accumulate))
        assert total == sum(steps_of[:max_epochs])
    for max_steps in (1, 50, sum(steps_of), sum(steps_of) + 1):
        total = dataset.total_steps(start_of_epoch(0, world_size), 0, RunBounds(20, max_steps, accumulate))
        assert total == min(max_steps, sum(steps_of))
    # A resumed run has the same total number of steps, and a finished run adds none.
    for epoch, done in ((7, 0), (7, 2), (19, 4)):
        position = Position(epoch, (Share(world_size, done * accumulate),))
        steps_done = sum(steps_of[:epoch]) + done
        assert dataset.total_steps(position, steps_done, RunBounds(20, None, accumulate)) == sum(steps_of)
    assert dataset.total_steps(start_of_epoch(20, world_size), 77, RunBounds(20, -1, accumulate)) == 77


@pytest.mark.parametrize("max_epochs", [None, -1])
def test_a_run_without_a_limit_on_epochs_is_not_planned_to_its_end(
    max_epochs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = training_set(utterances(30))
    monkeypatch.setattr(TrainingSet, "epoch", None)
    assert dataset.total_steps(start_of_epoch(0, 1), 5, RunBounds(max_epochs, 10**9, 1)) == 10**9


def test_remaining_steps_are_counted_for_the_new_number_of_processes() -> None:
    dataset = training_set(utterances(300))
    position = Position(3, (Share(2, 5),)).on(1)
    rest = len(dataset.epoch(position)) + sum(len(dataset.epoch(start_of_epoch(epoch, 1))) for epoch in (4, 5))
    assert dataset.total_steps(position, 40, RunBounds(6, -1, 1)) == 40 + rest


@pytest.mark.parametrize("max_cells", [None, 4000.0])
def test_a_plan_computed_in_small_blocks_equals_one_computed_in_one_block(
    max_cells: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = utterances(300)
    given[17] = Utterance("long", 13.0, "long", "long")
    reference = REFERENCE if max_cells is None else replace(REFERENCE, cells=lambda frames, tokens: frames * tokens)
    settings = read(PlanSettings, SETTINGS | {"max_cells": max_cells}, "data")
    plans = []
    for block in (1 << 20, 7):
        monkeypatch.setattr("asr.core.data.blocks.BLOCK", block)
        monkeypatch.setattr("asr.core.data.batch_plan.BLOCK", block)
        data = TrainingSet(given, FEATURES, reference, SPEED, 7, settings)
        plans.append((list(data.utterances.ids), steps(data.epoch(start_of_epoch(1, 2)))))
    assert plans[0] == plans[1]
    assert len(plans[0][0]) <= 299


def test_for_a_large_set_the_steps_are_extrapolated_from_the_first_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    data = training_set(utterances(200))
    bounds = RunBounds(max_epochs=9, max_steps=None, accumulate=2)
    lengths = [math.ceil(len(data.epoch(start_of_epoch(epoch, 1))) / 2) for epoch in range(9)]
    assert data.total_steps(start_of_epoch(0, 1), 0, bounds) == sum(lengths)
    monkeypatch.setattr("asr.core.data.training_set.MAX_PLANNED", 3 * 200)
    assert data.total_steps(start_of_epoch(0, 1), 0, bounds) == sum(lengths[:3]) + 6 * lengths[2]
    assert data.total_steps(start_of_epoch(0, 1), 0, replace(bounds, max_epochs=3)) == sum(lengths[:3])
    assert data.total_steps(start_of_epoch(0, 1), 0, replace(bounds, max_steps=20)) == 20
    monkeypatch.setattr("asr.core.data.training_set.MAX_PLANNED", 1)
    assert data.total_steps(start_of_epoch(0, 1), 0, bounds) == sum(lengths[:2]) + 7 * lengths[1]
