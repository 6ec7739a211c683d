"""What is found on a dev set when training is over: weights of the language model, calibration of confidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asr.data.batch import Rejected
from asr.data.manifest import Utterance
from asr.decode.beam import Beam
from asr.errors import InputError
from asr.evaluation.calibration import auc
from asr.evaluation.word_errors import ErrorCounts, count_errors, right_words, total
from asr.recognition.confidence import UNCALIBRATED, Calibration, calibrate
from asr.recognition.recognizer import Inference, Recognizer

FIRST_STEPS = (0.4, 1.0)  # of LM weight and word score
SMALLEST_STEP = 0.1  # of the LM weight
LARGEST_WEIGHT = 5.0


class Weights(NamedTuple):
    """What is searched for."""

    lm_weight: float
    word_score: float


@dataclass(frozen=True, slots=True)
class Heard:
    """An utterance with what the net makes of it, so that it need not run again: segments of log_probs (T', V)."""

    utterance: Utterance
    segments: list[tuple[float, Tensor]]


def hear(
    recognizer: Recognizer, utterances: Sequence[Utterance], how: Inference, advance: Callable[[float], None]
) -> tuple[list[Heard], list[Rejected]]:
    """Run the net over utterances and keep its log_probs; return them, and what could not be read."""
    heard: list[Heard] = []
    rejected: list[Rejected] = []
    for result in recognizer.segments(utterances, how):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        utterance, segments = result
        try:
            heard.append(Heard(utterance, [(start, log_probs.clone()) for start, log_probs in segments]))  # no padding
        except InputError as error:
            rejected.append(Rejected(utterance, str(error)))
        advance(utterance.duration)
    return heard, rejected


def search_weights(
    recognizer: Recognizer, decode: Beam, heard: Sequence[Heard], tell: Callable[[Weights, ErrorCounts], None]
) -> Weights:
    """Find the weights with the fewest errors: by steps along each of them, halved where none is an improvement.

    Args:
        recognizer: whose normaliser counts.
        decode: its search; left with the weights found.
        heard: the dev set.
        tell: told of each try.
    """
    tried: dict[Weights, ErrorCounts] = {}

    def errors(weights: Weights) -> int:
        if weights not in tried:
            decode.fusion.lm_weight, decode.fusion.word_score = weights
            tried[weights] = total(_count(recognizer, one) for one in heard)
            tell(weights, tried[weights])
        return tried[weights].errors

    best = Weights(decode.fusion.lm_weight, decode.fusion.word_score)
    errors(best)
    weight_step, score_step = FIRST_STEPS
    while weight_step >= SMALLEST_STEP:
        around = [
            Weights(round(min(max(best.lm_weight + weight, 0.0), LARGEST_WEIGHT), 4), round(best.word_score + score, 4))
            for weight, score in ((weight_step, 0), (-weight_step, 0), (0, score_step), (0, -score_step))
        ]
        found = min(around, key=errors)
        if errors(found) < errors(best):
            best = found
        else:
            weight_step, score_step = weight_step / 2, score_step / 2
    decode.fusion.lm_weight, decode.fusion.word_score = best
    return best


def _count(recognizer: Recognizer, heard: Heard) -> ErrorCounts:
    texts = [
        recognizer.hypotheses(log_probs[None], torch.tensor([len(log_probs)]))[0] for _, log_probs in heard.segments
    ]
    return count_errors(recognizer.normalize(heard.utterance.text), " ".join(filter(None, texts)))


@dataclass(frozen=True, slots=True)
class Confidence:
    """How good a recogniser's confidence is on a dev set.

    Args:
        calibration: the curve that fits it.
        num_words: recognised.
        right: the share of them that are right.
        before: mean confidence as it comes.
        after: mean confidence when calibrated.
        auc: how often a right word has more confidence than a wrong one.
    """

    calibration: Calibration
    num_words: int
    right: float
    before: float
    after: float
    auc: float


def fit_confidence(recognizer: Recognizer, heard: Sequence[Heard]) -> Confidence:
    """Calibrate the confidence of words; the recogniser is left with the calibration.

    Raises:
        InputError: no word was recognised.
    """
    recognizer.calibration = UNCALIBRATED
    confidences: list[float] = []
    right: list[bool] = []
    for one in heard:
        transcript = recognizer.transcript(one.utterance.duration, iter(one.segments))
        confidences += [word.confidence for word in transcript.words]
        right += right_words(recognizer.normalize(one.utterance.text), transcript.text)
    calibration = calibrate(confidences, right)
    recognizer.calibration = calibration
    after = [calibration(confidence) for confidence in confidences]
    count = len(right)
    return Confidence(
        calibration, count, sum(right) / count, sum(confidences) / count, sum(after) / count, auc(confidences, right)
    )
