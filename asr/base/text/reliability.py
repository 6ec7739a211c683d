"""Quality of word confidence: calibration (confidence equals accuracy) and discrimination (AUC)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

MAX_BINS = 10
MIN_BIN_WORDS = 20  # the accuracy of fewer words is too noisy


@dataclass(frozen=True, slots=True)
class Bin:
    """Words of similar confidence.

    Args:
        lowest: smallest confidence.
        highest: largest confidence.
        words: number of words.
        confidence: mean confidence.
        accuracy: fraction of correct words.
    """

    lowest: float
    highest: float
    words: int
    confidence: float
    accuracy: float


def reliability(confidences: Sequence[float], right: Sequence[bool]) -> list[Bin]:
    """Divide words into bins of equal count, from the lowest to the highest confidence.

    Bins have equal counts and not equal widths because most words have a high confidence: of ten bins of equal width,
    the last would contain nearly all words. Words of equal confidence share a bin. There are at most 10 bins, and fewer
    if a bin would have fewer than 20 words.

    *Source*: Nguyen and O'Connor 2015, "Posterior calibration and exploratory analysis for natural language processing
    models" (adaptive binning).
    """
    pairs = sorted(zip(confidences, right, strict=True))
    count = max(1, min(MAX_BINS, len(pairs) // MIN_BIN_WORDS))
    bins: list[list[tuple[float, bool]]] = [[]]
    placed = 0
    for _, group in groupby(pairs, key=lambda pair: pair[0]):
        if placed >= len(bins) * len(pairs) / count:
            bins.append([])
        words = list(group)
        bins[-1] += words
        placed += len(words)
    return [_bin(words) for words in bins if words]


def _bin(pairs: Sequence[tuple[float, bool]]) -> Bin:
    confidences = [confidence for confidence, _ in pairs]
    mean = math.fsum(confidences) / len(pairs)
    return Bin(confidences[0], confidences[-1], len(pairs), mean, sum(right for _, right in pairs) / len(pairs))


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: |confidence - accuracy| of each bin, averaged over words.

    *Source*: Guo et al. 2017, arXiv:1706.04599, equation 3.
    """
    words = sum(bucket.words for bucket in bins)
    return (
        math.fsum(bucket.words * abs(bucket.confidence - bucket.accuracy) for bucket in bins) / words
        if words
        else math.nan
    )


def auc(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """Return the probability that a correct word has a higher confidence than a wrong word; a tie counts half.

    Return NaN unless there are both correct and wrong words.
    """
    pairs = sorted(zip(confidences, right, strict=True))
    num_right, num_wrong = sum(right), len(right) - sum(right)
    ranks, first = 0.0, 0
    while first < len(pairs):
        end = first
        while end < len(pairs) and pairs[end][0] == pairs[first][0]:
            end += 1
        mean_rank = (first + 1 + end) / 2
        ranks += mean_rank * sum(is_right for _, is_right in pairs[first:end])
        first = end
    if not num_right or not num_wrong:
        return math.nan
    return (ranks - num_right * (num_right + 1) / 2) / (num_right * num_wrong)
