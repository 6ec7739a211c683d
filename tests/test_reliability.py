"""Reliability of confidence against plain loops."""

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.evaluation.calibration import auc, calibration_error, reliability

SOME = [0.0, 0.25, 0.5, 0.7, 1.0]


@given(words=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]), st.booleans()), max_size=25))
def test_auc_is_the_share_of_pairs_in_order(words: list[tuple[float, bool]]) -> None:
    right = [confidence for confidence, is_right in words if is_right]
    wrong = [confidence for confidence, is_right in words if not is_right]
    found = auc([confidence for confidence, _ in words], [is_right for _, is_right in words])
    if right and wrong:
        pairs = [(one > other) + (one == other) / 2 for one in right for other in wrong]
        assert found == pytest.approx(sum(pairs) / len(pairs))
    else:
        assert math.isnan(found)


@given(words=st.lists(st.tuples(st.one_of(st.sampled_from(SOME), st.floats(0, 1)), st.booleans()), max_size=300))
def test_each_word_is_in_one_bin_and_words_as_sure_as_each_other_in_the_same(words: list[tuple[float, bool]]) -> None:
    bins = reliability([confidence for confidence, _ in words], [is_right for _, is_right in words])
    assert sum(one.words for one in bins) == len(words)
    assert len(bins) <= max(1, min(10, len(words) // 20))
    assert all(one.highest < other.lowest for one, other in pairwise(bins))
    for one in bins:
        inside = [(confidence, right) for confidence, right in words if one.lowest <= confidence <= one.highest]
        assert one.words == len(inside) > 0
        assert one.confidence == pytest.approx(sum(confidence for confidence, _ in inside) / len(inside))
        assert one.accuracy == pytest.approx(sum(right for _, right in inside) / len(inside))


def test_bins_hold_as_many_words_each_however_sure_most_words_are() -> None:
    draw = random.Random(0)
    confidences = [1 - draw.random() ** 6 for _ in range(1000)]
    assert [one.words for one in reliability(confidences, [True] * 1000)] == [100] * 10
    assert [one.words for one in reliability(confidences[:70], [True] * 70)] == [24, 23, 23]
    assert Counter(one.words for one in reliability([0.5] * 300 + [0.9] * 300, [True] * 600)) == {300: 2}


def test_the_error_is_how_far_confidence_is_from_the_share_that_is_right() -> None:
    """Of 40 words sure to 0.9 half are right, and of 60 sure to 0.2 too: 0.4 * 0.4 + 0.6 * 0.3."""
    confidences = [0.9] * 40 + [0.2] * 60
    right = [True] * 20 + [False] * 20 + [True] * 30 + [False] * 30
    assert calibration_error(reliability(confidences, right)) == pytest.approx(0.34)
    assert calibration_error(reliability([1.0] * 30, [True] * 30)) == 0.0
    assert math.isnan(calibration_error(reliability([], [])))


def test_words_that_are_right_as_often_as_they_are_sure_have_a_small_error() -> None:
    draw = random.Random(1)
    confidences = [draw.random() for _ in range(20_000)]
    honest = reliability(confidences, [draw.random() < one for one in confidences])
    boasting = reliability(confidences, [draw.random() < one / 2 for one in confidences])
    assert calibration_error(honest) < 0.015
    assert calibration_error(boasting) == pytest.approx(0.25, abs=0.015)
