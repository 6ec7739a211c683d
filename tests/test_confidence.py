"""Confidence: a value between 0 and 1 from the entropy, and a curve that maps it to a probability."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.core.recognition.confidence import UNCALIBRATED, Calibration, calibrate, frame_confidence, load_calibration
from asr.core.recognition.long_form import Segment
from asr.errors import InputError
from tests.listener import listener
from tests.refusals import refused


def tsallis(probabilities: list[float], index: float = 1 / 2) -> float:
    """Compute the confidence of arXiv:2212.08703, section 3.3, from the entropy of section 3.2, term by term."""

    def entropy(distribution: list[float]) -> float:
        return sum(probability**index for probability in distribution if probability > 0) - 1

    size = len(probabilities)
    return 1 - entropy(probabilities) / entropy([1 / size] * size)


@settings(deadline=None)
@given(scores=st.lists(st.floats(-30, 30), min_size=2, max_size=40))
def test_the_confidence_of_a_frame_is_one_minus_its_normalised_entropy(scores: list[float]) -> None:
    log_probs = torch.tensor([scores, scores[::-1]], dtype=torch.float64).log_softmax(dim=-1)
    confidences = frame_confidence(log_probs)
    assert confidences.shape == (2,)
    assert ((confidences >= 0) & (confidences <= 1)).all()
    assert float(confidences[0]) == pytest.approx(tsallis(log_probs[0].exp().tolist()), abs=1e-9)
    assert float(confidences[1]) == pytest.approx(float(confidences[0]), abs=1e-9)


def test_rounding_leaves_the_confidence_between_0_and_1() -> None:
    for vocab_size in range(2, 200):
        uniform = torch.zeros(1, vocab_size).log_softmax(dim=-1)
        almost = torch.cat([torch.zeros(1, 1), torch.full((1, vocab_size - 1), -60.0)], dim=1).log_softmax(dim=-1)
        assert all(0 <= float(frame_confidence(distribution)) <= 1 for distribution in (uniform, almost))


@pytest.mark.parametrize("vocab_size", [2, 29, 5000])
def test_the_confidence_is_0_for_a_uniform_distribution_and_1_for_a_certain_one(vocab_size: int) -> None:
    uniform = torch.full((3, vocab_size), -math.log(vocab_size))
    assert frame_confidence(uniform).tolist() == pytest.approx([0.0] * 3, abs=1e-4)  # float32 rounding
    certain = torch.full((1, vocab_size), -math.inf)
    certain[0, 1] = 0.0
    assert frame_confidence(certain).tolist() == [1.0]
    halves = torch.full((1, vocab_size), -math.inf)
    halves[0, :2] = math.log(0.5)
    assert 0.0 <= float(frame_confidence(halves)) < 1.0
    assert frame_confidence(torch.zeros(0, vocab_size)).shape == (0,)


def test_a_words_confidence_is_the_calibrated_product_of_its_tokens_highest_frame_confidences() -> None:
    recognizer = listener()
    recognizer.calibration = Calibration(0.5, 0.3)
    tokens = [2, 2, 0, 3, 1, 4]  # "ab c"
    log_probs = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    log_probs[torch.arange(6), torch.tensor(tokens)] += 5.0
    log_probs = log_probs.log_softmax(dim=-1)
    words = recognizer.transcript(1.0, iter([Segment(0.0, log_probs)])).words
    assert [word.text for word in words] == ["ab", "c"]
    sure = frame_confidence(log_probs).tolist()
    assert [word.confidence for word in words] == [
        pytest.approx(recognizer.calibration(max(sure[:2]) * sure[3])),
        pytest.approx(recognizer.calibration(sure[5])),
    ]


# ---- the curve

CURVES = st.builds(Calibration, st.floats(0, 200), st.floats(-50, 50))


@given(curve=CURVES, confidences=st.lists(st.floats(0, 1), min_size=1).map(sorted))
def test_a_curve_stays_between_0_and_1_and_preserves_the_order(curve: Calibration, confidences: list[float]) -> None:
    calibrated = [curve(confidence) for confidence in [0.0, *confidences, 1.0]]
    assert all(0 <= confidence <= 1 for confidence in calibrated)
    assert all(earlier <= later for earlier, later in pairwise(calibrated))


@pytest.mark.parametrize("confidence", [0.001, 0.2, 0.5, 0.9, 0.999])
def test_the_default_curve_is_the_identity_and_others_are_logistic(confidence: float) -> None:
    assert UNCALIBRATED(confidence) == pytest.approx(confidence, abs=1e-12)
    logit = math.log(confidence / (1 - confidence))
    assert Calibration(2.0, -1.5)(confidence) == pytest.approx(1 / (1 + math.exp(1.5 - 2 * logit)))


def drawn(curve: Calibration, count: int, seed: int) -> tuple[list[float], list[bool]]:
    """Draw confidences, and which words are right; the curve maps a confidence to the probability of being right."""
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.sigmoid(1.5 * torch.randn(count, generator=generator) + 1).tolist()
    chances = torch.rand(count, generator=generator).tolist()
    return confidences, [chance < curve(confidence) for confidence, chance in zip(confidences, chances, strict=True)]


@pytest.mark.parametrize("planted", [Calibration(1.0, 0.0), Calibration(0.4, -1.0), Calibration(2.5, 1.2)])
def test_the_curve_that_simulated_words_follow_is_recovered(planted: Calibration) -> None:
    """The tolerances are four standard errors, which are 0.04 (slope) and 0.03 (intercept) for 20,000 words."""
    fitted = calibrate(*drawn(planted, 20_000, seed=1))
    assert fitted.slope == pytest.approx(planted.slope, abs=0.16)
    assert fitted.intercept == pytest.approx(planted.intercept, abs=0.12)


def likelihood(curve: Calibration, confidences: list[float], right: list[bool]) -> float:
    """Return the log-likelihood of Platt's smoothed targets under a curve."""
    count = sum(right)
    hit, miss = (count + 1) / (count + 2), 1 / (len(right) - count + 2)
    targets = [hit if is_right else miss for is_right in right]
    pairs = [(curve(confidence), target) for confidence, target in zip(confidences, targets, strict=True)]
    return sum(
        target * math.log(probability) + (1 - target) * math.log(1 - probability) for probability, target in pairs
    )


def test_no_nearby_curve_has_a_higher_likelihood() -> None:
    sample = drawn(Calibration(0.7, 0.5), 60, seed=2)
    fitted = calibrate(*sample)
    best = likelihood(fitted, *sample)
    for slope, intercept in ((0.02, 0), (-0.02, 0), (0, 0.02), (0, -0.02)):
        assert likelihood(Calibration(fitted.slope + slope, fitted.intercept + intercept), *sample) < best


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("confidences", [[0.9], [0.0, 1.0], [0.3, 0.5, 0.5, 0.99]])
def test_no_calibrated_confidence_is_0_or_1_even_if_all_words_are_right_or_all_are_wrong(
    right: bool, confidences: list[float]
) -> None:
    """Platt's target for right words is (n + 1) / (n + 2), where n words are right."""
    curve = calibrate(confidences, [right] * len(confidences))
    expected = (len(confidences) + 1) / (len(confidences) + 2)
    for confidence in (0.0, 0.5, *confidences, 1.0):
        assert 0.0 < curve(confidence) < 1.0
    assert all(
        curve(confidence) == pytest.approx(expected if right else 1 - expected, abs=0.01) for confidence in confidences
    )


def test_confidences_that_separate_right_from_wrong_words_perfectly_give_a_valid_curve() -> None:
    curve = calibrate([0.5, 0.500001, 0.500002, 0.500003], [False, False, True, True])
    assert all(0 <= curve(confidence) <= 1 for confidence in (0.0, 0.5, 1.0))
    curve = calibrate([0.1] * 50 + [0.9] * 50, [False] * 50 + [True] * 50)
    assert curve(0.1) < 0.05
    assert curve(0.9) > 0.95


def test_confidences_that_are_anticorrelated_with_correctness_give_a_constant_curve() -> None:
    curve = calibrate([0.1, 0.2, 0.8, 0.9], [True, True, False, False])
    assert curve(0.1) == curve(0.9) == pytest.approx(0.5)


def test_calibration_without_words_is_refused() -> None:
    with refused(InputError, "confidence ... none was recognised"):
        calibrate([], [])


def calibration_error(confidences: list[float], right: list[bool], bins: int = 10) -> float:
    """Return the mean over bins of |mean confidence - fraction of right words|, weighted by number of words."""
    bin_words: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for confidence, is_right in zip(confidences, right, strict=True):
        bin_words[min(int(confidence * bins), bins - 1)].append((confidence, is_right))
    gaps = [
        abs(sum(confidence for confidence, _ in words) - sum(is_right for _, is_right in words)) for words in bin_words
    ]
    return sum(gaps) / len(right)


def test_calibration_reduces_the_error_on_words_that_the_curve_was_not_fitted_to() -> None:
    truth = Calibration(0.5, -0.8)
    curve = calibrate(*drawn(truth, 500, seed=3))
    confidences, right = drawn(truth, 4000, seed=4)
    before = calibration_error(confidences, right)
    after = calibration_error([curve(confidence) for confidence in confidences], right)
    assert before > 0.2
    assert after < 0.06


def test_a_bundle_stores_the_confidence_curve() -> None:
    curve = Calibration(0.7, -1 / 3)
    assert load_calibration(curve.files()) == curve
    assert load_calibration({}) == UNCALIBRATED


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"slope": 1}', b'{"slope": "x", "intercept": 0}', b'{"slope": NaN, "intercept": 0}'],
)
def test_a_damaged_confidence_curve_is_refused(content: bytes) -> None:
    with refused(InputError, "confidence.json ... it is damaged"):
        load_calibration({"confidence.json": content})
