"""The values that tuning selects, and whether the estimated gain is confirmed on other speech."""

import math

import numpy as np
import pytest

from asr.apps.language_models.selection import Array, HeldOut, Trials, choose, expected_gain, fewest_errors
from asr.core.evaluation.bootstrap import MIN_UNITS

WEIGHTS = np.array([0.0, *np.linspace(0.1, 1.0, 19)])


def drawn(rates: Array, num_utterances: int, seed: int) -> Trials:
    """Draw errors of 25 words per utterance; trials have most errors in common, like searches of one model."""
    generator = np.random.default_rng(seed)
    hardness = generator.gamma(2.0, 0.5, size=num_utterances)
    shared = generator.random((num_utterances, 25))
    own = generator.random((len(rates), num_utterances, 25))
    both = np.where(generator.random(own.shape) < 0.8, shared, own)
    words = (both < (rates[:, None] * hardness)[..., None]).sum(axis=2).astype(float)
    return Trials(words, words, WEIGHTS[: len(rates)])


def trials(words: list[list[float]], characters: list[list[float]] | None = None) -> Trials:
    errors = np.array(words, float)
    return Trials(errors, np.array(characters or words, float), np.arange(len(words)) / 10)


def test_trials_are_compared_by_word_errors_and_then_by_character_errors() -> None:
    assert fewest_errors(trials([[3, 1], [1, 1], [2, 0]], [[9, 9], [5, 5], [5, 4]])) == 2


def test_the_weakest_language_model_within_one_standard_error_is_chosen() -> None:
    """Reference in plain code: the standard error of a sum of N differences is sqrt(N) times their deviation."""
    words = np.random.default_rng(0).poisson(2.0, size=(8, 30)).astype(float)
    made = Trials(words, words, WEIGHTS[:8])
    best = min(range(8), key=lambda trial: words[trial].sum())
    expected = None
    for trial in range(8):  # from the weakest to the strongest
        differences = [words[trial][u] - words[best][u] for u in range(30)]
        mean = sum(differences) / 30
        variance = sum((difference - mean) ** 2 for difference in differences) / 29
        if expected is None and sum(differences) <= math.sqrt(30 * variance):
            expected = trial
    assert choose(made) == expected


def test_a_language_model_that_helps_every_utterance_equally_gets_its_best_weight() -> None:
    """All differences are equal, so their standard error is 0, and no smaller weight is within one standard error."""
    assert choose(trials([[3, 3, 3], [2, 2, 2], [1, 1, 1]])) == 2


def test_without_real_differences_no_gain_is_estimated() -> None:
    """Twenty equally good searches: the best one looks better by chance, and cross-validation corrects for this."""
    flattered, promised, certain = [], [], 0
    for seed in range(100):
        made = drawn(np.full(20, 0.1), 60, seed)
        before = made.words[0].sum()
        flattered.append(made.words[fewest_errors(made)].sum() / before - 1)
        gain = expected_gain(made)
        promised.append(gain.after / gain.before - 1)
        certain += gain.is_certain
    assert np.mean(flattered) < -0.06
    assert abs(np.mean(promised)) < 0.01
    assert certain <= 3  # out of 100; 2.5 are expected for an interval of 95 %


def test_a_real_gain_is_confirmed_on_other_speech() -> None:
    """For values that remove at most 15 % of the errors, the estimate is close to the gain on other speech."""
    rates = 0.1 * (1 - 0.15 * np.exp(-(((WEIGHTS - 0.4) / 0.25) ** 2)))
    rates[0] = 0.1
    promised, came, covered = [], [], 0
    for seed in range(60):
        made = drawn(rates, 300, seed)
        gain = expected_gain(made)
        true = rates[choose(made)] / rates[0] - 1
        promised.append(gain.after / gain.before - 1)
        came.append(true)
        assert gain.interval is not None
        covered += gain.interval[0] <= true <= gain.interval[1]
    assert np.mean(came) < -0.10
    assert np.mean(promised) == pytest.approx(np.mean(came), abs=0.015)
    assert (
        covered >= 48
    )  # of 60; 57 are expected, but 51 are measured, because the interval ignores the variance of the selection


def test_no_gain_is_certain_with_too_few_utterances_or_without_errors() -> None:
    assert expected_gain(trials([[1.0] * (MIN_UNITS - 1), [0.0] * (MIN_UNITS - 1)])).interval is None
    assert expected_gain(trials([[0.0] * 9, [0.0] * 9])) == HeldOut(0.0, 0.0, None)
    assert not HeldOut(10.0, 1.0, None).is_certain
    assert expected_gain(trials([[1.0] * 9, [0.0] * 9])) == HeldOut(9.0, pytest.approx(0.0), (-1.0, -1.0))


def test_equal_dev_sets_give_equal_estimates() -> None:
    made = drawn(np.linspace(0.1, 0.09, 20), 50, 0)
    assert expected_gain(made) == expected_gain(made)
