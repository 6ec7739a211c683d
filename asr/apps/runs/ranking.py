"""Compare several evaluations with the best one, with significance corrected for the number of comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr.core.evaluation.bootstrap import by_cluster, difference
from asr.core.evaluation.counts import UtteranceCounts

LEVEL = 0.05  # a difference with a lower corrected p-value is significant


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference of an evaluation to the best one of the same manifest.

    Args:
        rate: error rate minus that of the best evaluation; None: the evaluations cannot be compared, because they have
            different utterances or references, or references without words.
        interval: 95 % interval of the difference; None for the best evaluation, and for too few utterances.
        p_value: two-sided p-value, corrected by `holm`; None where `interval` is None.
        is_best: whether this is the best evaluation.
    """

    rate: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    is_best: bool = False


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons; the chance of any false positive stays below the level of one test.

    *Source*: Holm 1979, "A simple sequentially rejective multiple test procedure". The smallest of n p-values is
    multiplied by n, the next by n - 1, and so on; a value is at least as large as the values before it, and at most 1.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def gaps_to_best(manifests: Mapping[str, Sequence[UtteranceCounts | None]]) -> dict[str, list[Gap | None]]:
    """Compare evaluations with the best one of each manifest by a paired bootstrap.

    The best evaluation is the one with the fewest errors, among those with the most frequent set of utterances and
    references. The bootstrap draws speakers if all are known and numerous enough, as the verdict of `asr.compare` does.
    The p-values of all manifests are corrected together.

    The correction does not account for the choice of the best evaluation by the same errors. In a simulation of equally
    good evaluations of one manifest, at least one was significantly worse than the best in 7 % of the cases with 3
    evaluations, 15 % with 10, and 23 % with 20, instead of 5 %.

    Args:
        manifests: by name of the manifest, the counts of each evaluation; None: there are no counts.

    Returns:
        By name of the manifest, the gap of each evaluation, in the given order; None where there are no counts.
    """
    gaps = {name: _gaps(evaluations) for name, evaluations in manifests.items()}
    tested = [gap.p_value for row in gaps.values() for gap in row if gap and gap.p_value is not None]
    corrected = iter(holm(tested))
    return {
        name: [replace(gap, p_value=next(corrected)) if gap and gap.p_value is not None else gap for gap in row]
        for name, row in gaps.items()
    }


def _gaps(evaluations: Sequence[UtteranceCounts | None]) -> list[Gap | None]:
    """Return the gaps on one manifest, with p-values that are not corrected."""
    stored = [counts for counts in evaluations if counts]
    if not stored:
        return [None] * len(evaluations)
    [(most_frequent, _)] = Counter(map(_set_of, stored)).most_common(1)
    comparable = [counts for counts in stored if _set_of(counts) == most_frequent]
    best = min(comparable, key=lambda counts: sum(counts.errors))
    return [(_gap(best, counts) if counts in comparable else Gap()) if counts else None for counts in evaluations]


def _set_of(counts: UtteranceCounts) -> tuple[str, frozenset[str]]:
    return counts.references, frozenset(counts.ids)


def _gap(best: UtteranceCounts, counts: UtteranceCounts) -> Gap:
    if not sum(best.lengths):
        return Gap()
    if counts is best:
        return Gap(0.0, is_best=True)
    row_of = {utterance_id: row for row, utterance_id in enumerate(counts.ids)}
    errors = [counts.errors[row_of[utterance_id]] for utterance_id in best.ids]
    sums = np.stack([best.errors, errors, best.lengths], axis=1).astype(np.float64)
    a, b, length = sums.sum(axis=0)
    over_speakers = difference(*by_cluster(sums, best.speakers).T) if best.speakers else None
    significance = over_speakers or difference(*sums.T)
    rate = float((b - a) / length)
    return Gap(rate, significance.interval, significance.p_value) if significance else Gap(rate)
