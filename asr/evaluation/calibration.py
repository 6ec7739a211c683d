"""How reliable the words' confidence is: calibrated (equal to the share of right words), and discriminating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

MOST_BINS = 10
FEWEST_WORDS = 20  # in a bin: of fewer the share that is right says little


@dataclass(frozen=True, slots=True)
class Bin:
    """Words of similar confidence.

    Args:
        lowest: confidence among them.
        highest: confidence among them.
        words: how many.
        confidence: their mean confidence.
        accuracy: the share of them that is right.
    """

    lowest: float
    highest: float
    words: int
    confidence: float
    accuracy: float


def reliability(confidences: Sequence[float], right: Sequence[bool]) -> list[Bin]:
    """Divide words into bins of equal count, from the least to the most sure.

    The bins are of equal count and not of equal width because most words are sure: of ten bins of equal width nearly
    all words are in the last one, and a few in each other. Words of the same confidence are never parted. There are at
    most 10 bins, and fewer where these would hold less than 20 words each.

    *Source*: Nguyen and O'Connor 2015, "Posterior calibration and exploratory analysis for natural language processing
    models" (adaptive binning).
    """
    pairs = sorted(zip(confidences, right, strict=True))
    count = max(1, min(MOST_BINS, len(pairs) // FEWEST_WORDS))
    bins: list[list[tuple[float, bool]]] = [[]]
    placed = 0
    for _, group in groupby(pairs, key=lambda pair: pair[0]):
        if placed >= len(bins) * len(pairs) / count:
            bins.append([])
        same = list(group)
        bins[-1] += same
        placed += len(same)
    return [_bin(words) for words in bins if words]


def _bin(pairs: Sequence[tuple[float, bool]]) -> Bin:
    confidences = [confidence for confidence, _ in pairs]
    mean = math.fsum(confidences) / len(pairs)
    return Bin(confidences[0], confidences[-1], len(pairs), mean, sum(right for _, right in pairs) / len(pairs))


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the ECE: how far confidence is from the share that is right, in the mean over words, taken bin by bin.

    *Source*: Guo et al. 2017, arXiv:1706.04599, equation 3.
    """
    words = sum(bucket.words for bucket in bins)
    return (
        math.fsum(bucket.words * abs(bucket.confidence - bucket.accuracy) for bucket in bins) / words
        if words
        else math.nan
    )


def auc(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """Return how often a right word has more confidence than a wrong one (a tie is half); nan without one of each."""
    pairs = sorted(zip(confidences, right, strict=True))
    num_right, num_wrong = sum(right), len(right) - sum(right)
    ranks, position = 0.0, 0
    while position < len(pairs):
        behind = position
        while behind < len(pairs) and pairs[behind][0] == pairs[position][0]:
            behind += 1
        mean_rank = (position + 1 + behind) / 2
        ranks += mean_rank * sum(is_right for _, is_right in pairs[position:behind])
        position = behind
    if not num_right or not num_wrong:
        return math.nan
    return (ranks - num_right * (num_right + 1) / 2) / (num_right * num_wrong)
