"""Confidence intervals of error rates: the bootstrap, over utterances or over speakers.

*Source*: Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance evaluation": as many
utterances as there are, drawn with replacement, again and again; the interval holds the middle 95 % of the rates of
these draws. Utterances of one speaker are not independent, so that an interval over utterances is too narrow for the
question how other speakers would fare: where all speakers are known, whole speakers are drawn instead.

These are percentile intervals, as in the paper. In simulations the true rate lay in them somewhat less often than 95 %
of the time where there is little to draw from: 93 % with 200 utterances, or with 20 speakers, 90 % with 10, 85 % with
5. (An interval over utterances held the rate of all speakers less than half the time, with speakers so different.)
Without any error all draws are 0, which says nothing about how many there might have been: there is no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRAWS = 10_000
SEED = 0  # so that the same results give the same interval
FEWEST = 5  # units to draw from: of less there is nothing to be said
MIDDLE = (2.5, 97.5)  # percentiles
CHUNK = 1_000_000  # units drawn at once: what bounds memory; with another number the draws would be others
IN_CACHE = 1 << 16  # units counted at once: as many numbers as a processor's cache holds


@dataclass(frozen=True, slots=True)
class Difference:
    """How two systems differ on the same units.

    Args:
        interval: of the second one's rate less the first one's.
        p_value: two-sided, of the hypothesis that they do not differ.
    """

    interval: tuple[float, float]
    p_value: float


def by_cluster(sums: Array, clusters: Sequence[str]) -> Array:
    """Sum rows that belong together: (N, K), N names, to (number of different names, K), in the order of the names."""
    _, row = np.unique(np.asarray(clusters, dtype=object), return_inverse=True)
    together = np.zeros((row.max(initial=-1) + 1, sums.shape[1]))
    np.add.at(together, row, sums)
    return together


def resample(sums: Array, draws: int = DRAWS, seed: int = SEED) -> Array:
    """Draw rows with replacement, as many as there are, and sum them: (N, K) to (draws, K)."""
    generator = np.random.default_rng(seed)
    size = len(sums)
    drawn = np.empty((draws, sums.shape[1]))
    rows, counted = max(1, CHUNK // size), max(1, IN_CACHE // size)
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        picked = generator.integers(size, size=(count, size), dtype=np.min_scalar_type(size - 1))
        for first in range(0, count, counted):
            flat = picked[first : first + counted] + np.arange(min(counted, count - first))[:, None] * size
            weights = np.bincount(flat.ravel(), minlength=flat.size).reshape(flat.shape)  # how often each was drawn
            drawn[start + first : start + first + len(flat)] = weights @ sums
    return drawn


def intervals(errors: Array, lengths: Array, draws: int = DRAWS, seed: int = SEED) -> list[tuple[float, float] | None]:
    """Give the 95 % interval of sum of errors / sum of lengths, for each of K kinds of errors.

    All kinds are counted on the same draws. Draws without any length have no rate, and are left out.

    Args:
        errors: (N, K), of each unit: an utterance, or all those of a speaker.
        lengths: (N, K), of their references.
        draws: how many.
        seed: of the draws.

    Returns:
        None where there are fewer than `FEWEST` units, no length, or no error.
    """
    kinds = errors.shape[1]
    if len(errors) < FEWEST:
        return [None] * kinds
    drawn = resample(np.concatenate([errors, lengths], axis=1), draws, seed)
    return [
        _middle(_rates(drawn[:, kind], drawn[:, kinds + kind])) if errors[:, kind].any() else None
        for kind in range(kinds)
    ]


def difference(a: Array, b: Array, lengths: Array, draws: int = DRAWS, seed: int = SEED) -> Difference | None:
    """Compare two systems by a paired bootstrap: both are counted on the same draws.

    The p-value is twice the share of draws in which the difference has the rarer sign, or is none; the draw that was
    observed counts as one of them, so that no p-value is 0.

    Args:
        a: (N,) errors of the first system in each unit: an utterance, or all those of a speaker.
        b: (N,) errors of the second.
        lengths: (N,) of the references, which are the same for both.
        draws: how many.
        seed: of the draws.

    Returns:
        None where there are fewer than `FEWEST` units, or no length.
    """
    if len(a) < FEWEST or not lengths.sum():
        return None
    drawn = resample(np.stack([b - a, lengths], axis=1), draws, seed)
    rates = _rates(drawn[:, 0], drawn[:, 1])
    rarer = min(int((rates <= 0).sum()), int((rates >= 0).sum()))
    interval = _middle(rates)
    assert interval is not None
    return Difference(interval, min(1.0, 2 * (rarer + 1) / (len(rates) + 1)))


def _rates(errors: Array, lengths: Array) -> Array:
    there = lengths > 0
    return errors[there] / lengths[there]


def _middle(rates: Array) -> tuple[float, float] | None:
    if not len(rates):
        return None
    low, high = np.percentile(rates, MIDDLE)
    return float(low), float(high)
