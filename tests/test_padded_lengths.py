"""Lengths are rounded up so that batches have few different lengths; this adds little padding."""

import math
from collections import Counter
from itertools import chain

import pytest
import torch

from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.data.batch import Batch, Example, collate
from asr.core.data.batch_plan import BatchBounds, BatchOrder, plan_training
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.manifest import Utterance
from asr.core.data.padded_lengths import AS_LONG_AS_THE_LONGEST, PaddedLengths
from asr.core.data.position import start_of_epoch
from asr.core.data.training_set import TrainingSet
from benchmarks.plan import TRAIN_MINI, draw_durations
from tests.conftest import resolved
from tests.test_training_set import training_set, utterances

SIXTEEN = PaddedLengths(16)


@pytest.mark.parametrize("per_doubling", [1, 4, 16, 64])
def test_a_length_is_rounded_up_to_one_of_evenly_spaced_lengths_between_powers_of_two(per_doubling: int) -> None:
    powers = [2**exponent for exponent in range(14)]
    evenly = chain.from_iterable(
        (power + part * power / per_doubling for part in range(per_doubling)) for power in powers
    )
    allowed = sorted({0, *(int(length) for length in evenly if length == int(length))})
    frames = range(5000)
    expected = [next(length for length in allowed if length >= number) for number in frames]
    lengths = PaddedLengths(per_doubling)
    assert [lengths.of(number) for number in frames] == expected
    assert lengths.of(torch.arange(5000)).tolist() == expected


def planned(count: int = 300, **settings: float | None) -> tuple[TrainingSet, EpochPlan]:
    chosen = training_set(utterances(count), **settings)
    return chosen, chosen.epoch(start_of_epoch(1, 1))


def batches(chosen: TrainingSet, epoch: EpochPlan) -> list[Batch]:
    noise = torch.Generator().manual_seed(0)
    return [chosen.made_up(epoch.items(step, 0), noise) for step in range(len(epoch))]


def test_lengths_of_batches_are_rounded_up_and_agree_with_the_plan() -> None:
    chosen, epoch = planned(lengths_per_doubling=16)
    made = batches(chosen, epoch)
    shapes = [batch.features.shape[:2] for batch in made]
    assert all(frames == SIXTEEN.of(frames) for _, frames in shapes)
    assert all(
        frames == SIXTEEN.of(int(batch.feature_lengths.max())) for batch, (_, frames) in zip(made, shapes, strict=True)
    )
    hop = chosen.features.hop / chosen.features.sample_rate
    real = sum(int(batch.feature_lengths.sum()) for batch in made)
    padded = sum(number * frames for number, frames in shapes)
    # The plan's share of padding is of seconds, not of frames: a window is longer than a hop, so they differ slightly.
    assert epoch.summary().padding == pytest.approx(1 - real / padded, abs=2e-3)
    bound = chosen.settings.batches.batch_seconds
    assert max(number * frames * hop for number, frames in shapes) <= bound
    assert sorted(item.row for step in range(len(epoch)) for item in epoch.items(step, 0)) == list(range(300))


def test_without_lengths_per_doubling_the_plan_does_not_round_lengths() -> None:
    """The padded durations are exactly the durations of the utterances."""
    chosen, epoch = planned(lengths_per_doubling=None)
    assert torch.equal(epoch.padded, epoch.durations)
    made = batches(chosen, epoch)
    assert all(batch.features.shape[1] == int(batch.feature_lengths.max()) for batch in made)
    durations = draw_durations(1000, TRAIN_MINI)
    bounds, order = BatchBounds(200, 256), BatchOrder(8.0, 0)
    plans = [
        plan_training(durations, bounds, order, seed=0, epoch=1, world_size=2, padded=padded)
        for padded in (None, durations)
    ]
    assert torch.equal(plans[0].order, plans[1].order)
    assert torch.equal(plans[0].edges, plans[1].edges)


@pytest.mark.parametrize(
    ("batch_seconds", "jitter", "most_padding"),
    # With 1,000 s per batch there are only 350 batches: jitter of 8 s already adds 4.4 % of padding without rounding.
    [(200, 8.0, 0.05), (1000, 8.0, 0.07), (1000, 4.0, 0.05)],
)
def test_an_epoch_of_librispeech_has_few_shapes_and_little_padding(
    batch_seconds: float, jitter: float, most_padding: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    speeds = torch.tensor([0.9, 1.0, 1.1], dtype=torch.float64)[torch.randint(3, (28_000,), generator=generator)]
    durations = draw_durations(28_000, TRAIN_MINI) / speeds
    padding = {}
    for lengths in (AS_LONG_AS_THE_LONGEST, SIXTEEN):
        padded = lengths.of((100 * durations).round().long()).double() / 100
        bounds, order = BatchBounds(batch_seconds, 256), BatchOrder(jitter, 0)
        plan = plan_training(durations, bounds, order, seed=0, epoch=1, world_size=1, padded=padded)
        longest, sizes = plan.longest(padded).flatten(), plan.sizes().flatten()
        padding[lengths] = 1 - float(durations.sum() / (longest * sizes).sum())
        shapes = Counter(zip(sizes.tolist(), longest.tolist(), strict=True))
    assert padding[SIXTEEN] < most_padding
    assert padding[SIXTEEN] - padding[AS_LONG_AS_THE_LONGEST] < 0.025
    assert len(shapes) < 60
    most = sum(number for _, number in shapes.most_common(16))
    assert most > 0.85 * len(plan), "sixteen shapes cover nearly all batches"


@pytest.mark.parametrize("norm", ["masked_batch_norm", "layer_norm"])
def test_loss_and_gradients_equal_those_of_the_batch_without_the_additional_padding(norm: str) -> None:
    config = resolved("encoder=conformer_xs", f"encoder/norm={norm}", "encoder.num_layers=2", "encoder.dropout=0")
    config["encoder"]["subsampling"]["dropout"] = 0.0
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    model = build_model(config, tokenizer, build_features(config)).double()
    examples = [
        Example(Utterance("", 1.0, "", ""), torch.randn(frames, 80, dtype=torch.float64), torch.tensor([1, 2, 3]))
        for frames in (203, 140, 90)
    ]
    results = []
    for lengths in (AS_LONG_AS_THE_LONGEST, SIXTEEN):
        batch = collate(examples, lengths)
        assert batch.features.shape[1] == lengths.of(203)
        junk = torch.arange(batch.features.shape[1]) >= batch.feature_lengths[:, None]
        features = batch.features.masked_fill(junk[:, :, None], math.nan)
        encoded = model(features, batch.feature_lengths)
        loss = model.head.losses(encoded, batch.targets)["loss"].sum()
        results.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)
