"""Confidence of words, from 0 to 1: computed from entropy and calibrated on a dev set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from asr.base.system.learnt import from_json, to_json
from asr.errors import InputError

FILE = "confidence.json"
ENTROPIC_INDEX = 1 / 2  # index of Tsallis' entropy; 1/3 and 2 had a lower AUC on words recognised by asr's models
CEILING = 1 - 1e-6  # confidences are clamped to [1 - CEILING, CEILING] before the logit is computed


def frame_confidence(log_probs: Tensor) -> Tensor:
    """Map each frame's entropy to a confidence from 0 (all tokens equally likely) to 1 (one token certain).

    *Source*: Laptev and Ginsburg 2022, arXiv:2212.08703, sections 3.2 and 3.3: Tsallis' entropy, normalised by its
    largest value.

    Shapes:
        log_probs: (T', V).
        returns: (T',).
    """
    largest = log_probs.shape[-1] ** (1 - ENTROPIC_INDEX) - 1
    entropy = torch.exp(ENTROPIC_INDEX * log_probs).sum(dim=-1) - 1
    return (1 - entropy / largest).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Map a confidence to the probability that the word is correct: a logistic curve over the confidence's logit.

    *Source*: Platt 1999, "Probabilistic Outputs for Support Vector Machines". The default is the identity.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, confidence: float) -> float:
        """Map a confidence from 0 to 1 monotonically to a calibrated confidence from 0 to 1."""
        # tanh, because exp would overflow
        return (1 + math.tanh((self.slope * _logit(confidence) + self.intercept) / 2)) / 2

    def files(self) -> dict[str, bytes]:
        """Return the file that a bundle stores."""
        return to_json(FILE, asdict(self))


UNCALIBRATED = Calibration()


def load_calibration(files: dict[str, bytes]) -> Calibration:
    """Load the file of a calibration; if it is absent, confidences are not calibrated."""
    if FILE not in files:
        return UNCALIBRATED
    try:
        content = from_json(files, FILE)
        curve = Calibration(float(content["slope"]), float(content["intercept"]))
        if not (math.isfinite(curve.slope) and math.isfinite(curve.intercept)):
            raise ValueError
        return curve
    except (ValueError, KeyError, TypeError, OverflowError):
        raise InputError(f"{FILE} must hold slope and intercept; it is damaged.") from None


def calibrate(confidences: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Fit the curve by maximum likelihood, with Platt's targets, which prevent probabilities of 0 and 1.

    Args:
        confidences: uncalibrated confidences of words.
        right: whether each word is correct.

    Raises:
        InputError: there are no words.
    """
    if not confidences:
        raise InputError("confidence must be calibrated on words; none was recognised.")
    num_right = sum(right)
    hit, miss = (num_right + 1) / (num_right + 2), 1 / (len(right) - num_right + 2)
    target = torch.tensor([hit if is_right else miss for is_right in right], dtype=torch.float64)
    logit = torch.tensor([_logit(confidence) for confidence in confidences], dtype=torch.float64)
    curve = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    newton = torch.optim.LBFGS([curve], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def loss() -> Tensor:
        newton.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(curve[0] * logit + curve[1], target)
        value.backward()
        return value

    newton.step(loss)
    slope, intercept = curve.tolist()
    if slope <= 0:  # too few words to find a rising curve: each word gets the share of correct words
        rate = float(target.mean())
        return Calibration(0.0, math.log(rate / (1 - rate)))
    return Calibration(slope, intercept)


def _logit(confidence: float) -> float:
    bounded = min(max(confidence, 1 - CEILING), CEILING)
    return math.log(bounded / (1 - bounded))
