"""Comparisons of several evaluations with the best one: pairing, bootstrap, and correction by Holm's method."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from asr.apps.runs.ranking import gaps_to_best, holm
from asr.core.evaluation.comparison import compare
from asr.core.evaluation.counts import count_utterances, parse_counts
from asr.errors import InputError
from tests.refusals import refused
from tests.scoring import scored, simulated


def by_enumeration(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by closed testing: a hypothesis is rejected if Bonferroni rejects every set that contains it."""
    indices = range(len(p_values))
    corrected = [0.0] * len(p_values)
    for size in range(1, len(p_values) + 1):
        for chosen in combinations(indices, size):
            of_set = min(1.0, size * min(p_values[index] for index in chosen))
            for index in chosen:
                corrected[index] = max(corrected[index], of_set)
    return corrected


@pytest.mark.parametrize(
    "p_values",
    [[], [0.03], [0.04, 0.01, 0.03], [0.02, 0.02, 0.02, 0.9], [0.5, 0.0002, 0.3, 0.011, 0.04, 0.0124, 1.0]],
)
def test_holms_correction_equals_closed_testing_by_enumeration(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(by_enumeration(p_values), abs=1e-12)


def test_p_values_of_all_manifests_are_corrected_together() -> None:
    counts = [count_utterances(simulated(40, seed, error_rate=0.1 + seed / 30)) for seed in range(3)]
    pairs = [[counts[0], counts[1]], [counts[0], counts[2]], [counts[1], counts[2]]]  # one comparison each
    uncorrected = [gap.p_value for pair in pairs for gap in gaps_to_best({"": pair})[""] if gap and gap.interval]
    gaps = gaps_to_best({"a": counts, "b": [None, *pairs[2]]})
    corrected = [gap.p_value for row in gaps.values() for gap in row if gap and gap.interval]
    assert [gap is None for gap in gaps["b"]] == [True, False, False]
    assert corrected == pytest.approx(by_enumeration([p_value for p_value in uncorrected if p_value is not None]))


def test_utterances_are_paired_by_id_whatever_their_order() -> None:
    a, b = simulated(50, seed=1), simulated(50, seed=2, error_rate=0.2)
    in_order = gaps_to_best({"test": [count_utterances(a), count_utterances(b)]})
    assert gaps_to_best({"test": [count_utterances(a), count_utterances(b[::-1])]}) == in_order


def test_without_speakers_the_bootstrap_draws_utterances() -> None:
    a, b = (
        [replace(result, utterance=replace(result.utterance, speaker=None)) for result in simulated(50, seed)]
        for seed in (1, 2)
    )
    better, worse = sorted((a, b), key=lambda results: sum(result.counts.errors for result in results))
    [gap] = [gap for gap in gaps_to_best({"": [count_utterances(a), count_utterances(b)]})[""] if gap and gap.interval]
    difference = compare(better, worse)["difference"]
    assert gap.rate == pytest.approx(difference["rate"], abs=1e-12)
    assert (gap.interval, gap.p_value) == (tuple(difference["interval"]), difference["p_value"])


def test_too_few_utterances_and_references_without_words_have_no_p_value() -> None:
    few = [count_utterances(simulated(3, seed)) for seed in (1, 2)]
    assert all(gap and gap.p_value is None for gap in gaps_to_best({"test": few})["test"])
    empty = [count_utterances([scored("", "a", name=str(number)) for number in range(9)])] * 2
    assert all(gap and (gap.rate, gap.is_best) == (None, False) for gap in gaps_to_best({"test": empty})["test"])


def test_counts_with_missing_or_repeated_utterances_are_refused() -> None:
    entry = json.loads(json.dumps(count_utterances(simulated(4, seed=1)).as_dict()))
    assert parse_counts(entry).as_dict() == entry
    for key, value in (("ids", ["a"] * 4), ("errors", [1]), ("lengths", [1, 2, 3, -4]), ("speakers", ["s"])):
        with refused(InputError, "counts.json ... unit"):
            parse_counts({**entry, key: value})
