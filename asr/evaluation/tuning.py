"""What is found on a dev set when training is over: weights of the language model, calibration of confidence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from asr.data.batch import Rejected
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.evaluation.calibration import auc
from asr.evaluation.word_errors import ErrorCounts, count_characters, count_errors, right_words, total
from asr.interfaces import Tunable
from asr.recognition.confidence import UNCALIBRATED, Calibration, calibrate
from asr.recognition.inference import Inference
from asr.recognition.long_form import Segment
from asr.recognition.recognizer import Recognizer

HALVINGS = 3  # of the steps of a search

Values = Mapping[str, float]  # of what a decoder can tune


@dataclass(frozen=True, slots=True)
class EncodedUtterance:
    """An utterance with what the encoder gives of it, so that it need not run again."""

    utterance: Utterance
    segments: list[Segment]


def encode(
    recognizer: Recognizer, utterances: Sequence[Utterance], how: Inference, advance: Callable[[float], None]
) -> tuple[list[EncodedUtterance], list[Rejected]]:
    """Run the encoder over utterances and keep what it gives; return that, and what could not be read."""
    dev_set: list[EncodedUtterance] = []
    rejected: list[Rejected] = []
    for result in recognizer.segments(utterances, how):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        utterance, segments = result
        try:  # clones, since an utterance's frames lie in a whole batch's
            dev_set.append(EncodedUtterance(utterance, [Segment(start, out.clone()) for start, out in segments]))
        except InputError as error:
            rejected.append(Rejected(utterance, str(error)))
        advance(utterance.duration)
    return dev_set, rejected


def search_values(
    recognizer: Recognizer, dev_set: Sequence[EncodedUtterance], on_trial: Callable[[Values, ErrorCounts], None]
) -> dict[str, float]:
    """Find the values with the fewest errors: by steps along each of them, halved where none is an improvement.

    Of values with as many word errors, those with fewer errors in characters are better: a small dev set has many.

    Args:
        recognizer: whose decoder's tunable values are searched for, and whose normaliser counts.
        dev_set: to count errors on.
        on_trial: called with each trial and its errors.
    """
    tunable = recognizer.decode.tunable
    evidence = [
        (encoded.utterance, [_evidence(recognizer, segment) for segment in encoded.segments]) for encoded in dev_set
    ]
    trials: dict[tuple[float, ...], tuple[int, int]] = {}

    def errors(values: tuple[float, ...]) -> tuple[int, int]:
        if values not in trials:
            named = dict(zip(tunable, values, strict=True))
            texts = [_texts(recognizer, *pair, named) for pair in evidence]
            words = total(count_errors(*pair) for pair in texts)
            trials[values] = words.errors, total(count_characters(*pair) for pair in texts).errors
            on_trial(named, words)
        return trials[values]

    best = tuple(number.value for number in tunable.values())
    errors(best)
    for halving in range(HALVINGS):
        improves = True
        while improves:
            around = [
                _moved(best, index, sign * number.step / 2**halving, number)
                for index, number in enumerate(tunable.values())
                for sign in (1, -1)
            ]
            nearest = min(around, key=errors)
            improves = errors(nearest) < errors(best)
            best = nearest if improves else best
    return dict(zip(tunable, best, strict=True))


def _moved(values: tuple[float, ...], index: int, step: float, number: Tunable) -> tuple[float, ...]:
    """One of the values moved by a step, within its range."""
    moved = round(min(max(values[index] + step, number.low), number.high), 4)
    return (*values[:index], moved, *values[index + 1 :])


def _evidence(recognizer: Recognizer, segment: Segment) -> object:
    out = segment.encoder_out
    return recognizer.evidence(out[None], torch.tensor([len(out)], device=out.device))


def _texts(recognizer: Recognizer, utterance: Utterance, evidence: Sequence[object], values: Values) -> tuple[str, str]:
    """What was said, and what is recognised with these values, both as they are scored."""
    texts = [recognizer.text(recognizer.search(segment, values)[0][0]) for segment in evidence]
    normalize = recognizer.model.scored_by
    return normalize(utterance.text), normalize(" ".join(filter(None, texts)))


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


def fit_confidence(recognizer: Recognizer, dev_set: Sequence[EncodedUtterance], values: Values) -> Confidence:
    """Calibrate the confidence of words; the recogniser is left with the calibration.

    Args:
        recognizer: whose words are weighed.
        dev_set: to count right words on.
        values: of what its decoder can tune, instead of its own.

    Raises:
        InputError: no word was recognised.
    """
    recognizer.calibration = UNCALIBRATED
    normalize = recognizer.model.scored_by
    confidences: list[float] = []
    right: list[bool] = []
    for encoded in dev_set:
        utterance = encoded.utterance
        written = recognizer.transcript(utterance.duration, iter(encoded.segments), values=values)
        transcript = written.normalized(normalize)
        confidences += [word.confidence for word in transcript.words]
        right += right_words(normalize(utterance.text), transcript.text)
    calibration = calibrate(confidences, right)
    recognizer.calibration = calibration
    after = [calibration(confidence) for confidence in confidences]
    count = len(right)
    return Confidence(
        calibration, count, sum(right) / count, sum(confidences) / count, sum(after) / count, auc(confidences, right)
    )
