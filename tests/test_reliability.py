"""Reliability of confidence compared with plain loops."""

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.base.text.reliability import auc, calibration_error, reliability

SOME = [0.0, 0.25, 0.5, 0.7, 1.0]


@given(words=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]), st.booleans()), max_size=25))
def test_auc_is_the_share_of_correctly_ordered_pairs(words: list[tuple[float, bool]]) -> None:
    right = [confidence for confidence, is_right in words if is_right]
    wrong = [confidence for confidence, is_right in words if not is_right]
    area = auc([confidence for confidence, _ in words], [is_right for _, is_right in words])
    if right and wrong:
        pairs = [(hit > miss) + (hit == miss) / 2 for hit in right for miss in wrong]
        assert area == pytest.approx(sum(pairs) / len(pairs))
    else:
        assert math.isnan(area)


@given(words=st.lists(st.tuples(st.one_of(st.sampled_from(SOME), st.floats(0, 1)), st.booleans()), max_size=300))
def test_each_word_is_in_one_bin_and_equal_confidences_share_a_bin(words: list[tuple[float, bool]]) -> None:
    bins = reliability([confidence for confidence, _ in words], [is_right for _, is_right in words])
    assert sum(confidence_bin.words for confidence_bin in bins) == len(words)
    assert len(bins) <= max(1, min(10, len(words) // 20))
    assert all(lower.highest < upper.lowest for lower, upper in pairwise(bins))
    for confidence_bin in bins:
        inside = [
            (confidence, right)
            for confidence, right in words
            if confidence_bin.lowest <= confidence <= confidence_bin.highest
        ]
        assert confidence_bin.words == len(inside) > 0
        assert confidence_bin.confidence == pytest.approx(sum(confidence for confidence, _ in inside) / len(inside))
        assert confidence_bin.accuracy == pytest.approx(sum(right for _, right in inside) / len(inside))


def test_bins_have_equal_numbers_of_words_for_any_distribution_of_confidence() -> None:
    draw = random.Random(0)
    confidences = [1 - draw.random() ** 6 for _ in range(1000)]
    assert [confidence_bin.words for confidence_bin in reliability(confidences, [True] * 1000)] == [100] * 10
    assert [confidence_bin.words for confidence_bin in reliability(confidences[:70], [True] * 70)] == [24, 23, 23]
    assert Counter(confidence_bin.words for confidence_bin in reliability([0.5] * 300 + [0.9] * 300, [True] * 600)) == {
        300: 2
    }


def test_the_calibration_error_is_the_mean_difference_of_confidence_and_accuracy() -> None:
    """Half of 40 words with confidence 0.9 and half of 60 with 0.2 are right: the error is 0.4 * 0.4 + 0.6 * 0.3."""
    confidences = [0.9] * 40 + [0.2] * 60
    right = [True] * 20 + [False] * 20 + [True] * 30 + [False] * 30
    assert calibration_error(reliability(confidences, right)) == pytest.approx(0.34)
    assert calibration_error(reliability([1.0] * 30, [True] * 30)) == 0.0
    assert math.isnan(calibration_error(reliability([], [])))


def test_well_calibrated_confidences_have_a_small_calibration_error() -> None:
    draw = random.Random(1)
    confidences = [draw.random() for _ in range(20_000)]
    honest = reliability(confidences, [draw.random() < confidence for confidence in confidences])
    boasting = reliability(confidences, [draw.random() < confidence / 2 for confidence in confidences])
    assert calibration_error(honest) < 0.015
    assert calibration_error(boasting) == pytest.approx(0.25, abs=0.015)
