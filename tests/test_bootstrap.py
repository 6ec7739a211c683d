"""Intervals and p-values compared with plain loops, with kaldialign, and with simulations whose true rate is known."""

from collections.abc import Iterator
from itertools import islice

import kaldialign
import numpy as np
import pytest
from numpy.typing import NDArray

from asr.core.evaluation.bootstrap import MIN_UNITS, by_cluster, difference, intervals, resample

Array = NDArray[np.float64]


def column(values: list[float] | Array) -> Array:
    return np.asarray(values, dtype=np.float64)[:, None]


def simulated(generator: np.random.Generator, utterances: int) -> tuple[Array, Array]:
    """Draw the errors and lengths of utterances of 5 to 35 words; their expected WERs vary around a mean of 10 %."""
    lengths = generator.integers(5, 36, utterances)
    return generator.binomial(lengths, generator.beta(2, 18, utterances)).astype(float), lengths.astype(float)


def plain_draws(sums: Array, draws: int, seed: int) -> Array:
    """Draw rows with replacement and sum them, one after another."""
    generator = np.random.default_rng(seed)
    sums_of_draws = []
    for _ in range(draws):
        drawn = [0.0] * sums.shape[1]
        for _ in range(len(sums)):
            row = sums[generator.integers(len(sums))]
            drawn = [total + value for total, value in zip(drawn, row, strict=True)]
        sums_of_draws.append(drawn)
    return np.array(sums_of_draws)


def test_draws_have_the_mean_and_deviation_of_a_plain_loop() -> None:
    """`resample` and the loop make 4,000 draws each; the standard error of a mean is 1/63 of the standard deviation."""
    errors, lengths = simulated(np.random.default_rng(0), 40)
    sums = np.stack([errors, lengths], axis=1)
    fast, plain = resample(sums, 4000, seed=1), plain_draws(sums, 4000, seed=2)
    deviation = plain.std(axis=0)
    assert (np.abs(fast.mean(axis=0) - plain.mean(axis=0)) < 0.1 * deviation).all()
    assert fast.std(axis=0) == pytest.approx(deviation, rel=0.06)
    assert np.corrcoef(fast.T)[0, 1] == pytest.approx(np.corrcoef(plain.T)[0, 1], abs=0.06)
    by_plain = np.percentile(plain[:, 0] / plain[:, 1], (2.5, 97.5))
    assert intervals(column(errors), column(lengths))[0] == pytest.approx(by_plain, rel=0.05)


def test_for_any_chunk_size_every_draw_has_as_many_rows_as_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.ones((7, 1))
    for chunk in (1, 7, 20, 1000):
        monkeypatch.setattr("asr.core.evaluation.bootstrap.CHUNK", chunk)
        assert resample(ones, 33).tolist() == [[7.0]] * 33
        seen = resample(np.eye(7), 500)
        assert (seen.sum(axis=1) == 7).all()
        assert seen.mean(axis=0) == pytest.approx(np.ones(7), abs=0.25), "all rows are drawn equally often"


def test_an_interval_equals_that_of_kaldialign() -> None:
    """The tolerance is 5 % of the width: kaldialign's interval is the mean of draws plus or minus 1.96 deviations."""
    generator = np.random.default_rng(3)
    errors, lengths = simulated(generator, 600)
    references = [["a"] * int(length) for length in lengths]
    hypotheses = [
        ["b"] * int(wrong) + ["a"] * int(length - wrong) for wrong, length in zip(errors, lengths, strict=True)
    ]
    theirs = kaldialign.bootstrap_wer_ci(references, hypotheses)
    low, high = intervals(column(errors), column(lengths))[0] or (0, 0)
    width = theirs["ci95max"] - theirs["ci95min"]
    assert low == pytest.approx(theirs["ci95min"], abs=0.05 * width)
    assert high == pytest.approx(theirs["ci95max"], abs=0.05 * width)


def test_equal_results_have_equal_intervals_and_another_seed_changes_them_only_slightly() -> None:
    errors, lengths = simulated(np.random.default_rng(4), 100)
    (first,), (again,) = intervals(column(errors), column(lengths)), intervals(column(errors), column(lengths))
    (other,) = intervals(column(errors), column(lengths), seed=1)
    assert first == again != other
    assert first == pytest.approx(other, rel=0.03)


def test_several_kinds_of_errors_each_have_their_own_interval() -> None:
    errors, lengths = simulated(np.random.default_rng(5), 50)
    both = intervals(np.stack([errors, 2 * errors], axis=1), np.stack([lengths, lengths], axis=1))
    assert both[0] == intervals(column(errors), column(lengths))[0]
    assert both[1] == pytest.approx([2 * end for end in both[0] or ()])


@pytest.mark.parametrize(
    ("errors", "lengths", "expected"),
    [
        ([], [], None),
        ([1.0] * (MIN_UNITS - 1), [10.0] * (MIN_UNITS - 1), None),  # too few utterances to draw from
        ([1.0] * MIN_UNITS, [10.0] * MIN_UNITS, (0.1, 0.1)),
        ([0.0] * 9, [10.0] * 9, None),  # without errors, the error rate on other data cannot be estimated
        ([1.0] * 9, [0.0] * 9, None),  # no words in the references
        # Only the last utterance has a word. Draws without it are left out, because they have no error rate.
        ([3.0] * 5, [0.0] * 4 + [1.0], (3.0, 15.0)),
    ],
)
def test_without_enough_data_there_is_no_interval(
    errors: list[float], lengths: list[float], expected: tuple[float, float] | None
) -> None:
    interval = intervals(column(errors), column(lengths))[0]
    if expected == (3.0, 15.0):
        assert interval is not None
        assert interval[0] >= 3.0
        assert interval[1] == 15.0
    else:
        assert interval == expected
        same = difference(*(np.array(values) for values in (errors, errors, lengths)))
        assert (same is None) == (len(errors) < MIN_UNITS or not sum(lengths)), (
            "equal systems can be compared even if they have no errors"
        )


def test_sums_over_clusters_equal_those_of_a_plain_loop_and_are_in_the_order_of_names() -> None:
    sums = np.arange(12.0).reshape(6, 2)
    names = ["b", "a", "é", "b", "a", "\U0001f600"]
    expected = {name: [0.0, 0.0] for name in sorted(names)}
    for name, row in zip(names, sums, strict=True):
        expected[name] = [total + value for total, value in zip(expected[name], row, strict=True)]
    assert by_cluster(sums, names).tolist() == list(expected.values())
    assert by_cluster(sums[:0], []).shape == (0, 2)


# ---- simulations


def test_the_interval_over_utterances_contains_the_true_rate_as_often_as_stated() -> None:
    """90 % to 98 % of 400 intervals must contain the true rate (standard error 1.2 %).

    In a longer simulation 93.4 % of the intervals contained it.
    """
    generator = np.random.default_rng(6)
    hits = 0
    for _ in range(400):
        errors, lengths = simulated(generator, 200)
        low, high = intervals(column(errors), column(lengths), draws=500)[0] or (1, 0)
        hits += low <= 0.1 <= high
    assert 0.90 <= hits / 400 <= 0.98


def test_only_the_interval_over_speakers_contains_the_rate_of_other_speakers() -> None:
    """There are 20 speakers with 30 utterances each. The WER differs by speaker; its expectation is 10 %."""
    generator = np.random.default_rng(7)
    names = [str(speaker) for speaker in range(20) for _ in range(30)]
    hits = {"utterances": 0, "speakers": 0}
    for _ in range(200):
        wer = np.repeat(generator.beta(4, 36, 20), 30)
        lengths = generator.integers(5, 36, 600)
        errors = generator.binomial(lengths, wer)
        sums = np.stack([errors, lengths], axis=1).astype(float)
        for unit, units in (("utterances", sums), ("speakers", by_cluster(sums, names))):
            low, high = intervals(units[:, :1], units[:, 1:], draws=300)[0] or (1, 0)
            hits[unit] += low <= 0.1 <= high
    assert hits["speakers"] / 200 >= 0.88  # a longer simulation gave 92.6 % of 2,000 intervals
    assert hits["utterances"] / 200 <= 0.6


def errors_of_2600(generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw errors and lengths of 2,600 utterances of 20 words with a WER of 10 %."""
    return generator.binomial(20, 0.1, 2600).astype(float), np.full(2600, 20.0)


def every_20th_corrected(errors: Array) -> Array:
    """Remove the 20th error, the 40th, and so on, counted over all utterances."""
    before = np.concatenate([[0], errors.cumsum()[:-1]])
    return errors - ((before + errors) // 20 - before // 20)


DRAWS = 1000  # draws per bootstrap: a tenth of the default, to save time


def significant(number: int, pairs: Iterator[tuple[Array, Array]]) -> int:
    """Count the pairs of systems that differ with p < 0.05."""
    num_significant = 0
    for seed, (a, b) in enumerate(islice(pairs, number)):
        result = difference(a, b, np.full(2600, 20.0), DRAWS, seed=seed)
        assert result is not None
        num_significant += result.p_value < 0.05
    return num_significant


def corrected(generator: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Yield the errors of a system, and the same errors without every 20th error."""
    while True:
        a, _ = errors_of_2600(generator)
        b = every_20th_corrected(a)
        assert a.sum() - b.sum() == a.sum() // 20
        yield a, b


def test_correcting_every_20th_error_makes_a_significant_difference() -> None:
    assert significant(200, corrected(np.random.default_rng(8))) >= 0.95 * 200


@pytest.mark.slow
def test_systems_that_differ_by_chance_rarely_differ_significantly() -> None:
    """The results of the two systems are swapped in random utterances, so 5 % of the pairs should have p < 0.05."""

    def exchanged(generator: np.random.Generator) -> Iterator[tuple[Array, Array]]:
        for a, b in corrected(generator):
            swap = generator.random(2600) < 0.5
            yield np.where(swap, b, a), np.where(swap, a, b)

    num_significant = significant(500, exchanged(np.random.default_rng(9)))
    assert 0.02 * 500 <= num_significant <= 0.07 * 500


def test_a_p_value_is_two_sided_and_never_0_and_is_1_without_differences() -> None:
    generator = np.random.default_rng(10)
    a, lengths = errors_of_2600(generator)
    better, worse = difference(a, a - (a > 0), lengths), difference(a - (a > 0), a, lengths)
    assert better is not None
    assert worse is not None
    assert better.p_value == worse.p_value == pytest.approx(2 / 10_001)
    assert better.interval == pytest.approx([-end for end in reversed(worse.interval)])
    assert better.interval[1] < 0
    same = difference(a, a, lengths)
    assert same is not None
    assert (same.interval, same.p_value) == ((0.0, 0.0), 1.0)


def test_one_changed_utterance_is_not_significant() -> None:
    """A third of the draws do not contain the changed utterance, so the systems are equal in them."""
    a, lengths = np.full(100, 2.0), np.full(100, 20.0)
    b = a.copy()
    b[17] = 0
    result = difference(a, b, lengths)
    assert result is not None
    assert result.p_value == pytest.approx(2 * (1 - 1 / 100) ** 100, abs=0.03)
