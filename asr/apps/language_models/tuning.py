"""Tuning on a dev set after training: weights of the language model, calibration of confidence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from asr.apps.language_models.selection import Trials
from asr.base.text.reliability import auc
from asr.base.text.word_errors import ErrorCounts, count_characters, count_errors, right_words, total
from asr.core.data.batch import Rejected
from asr.core.data.manifest import Utterance
from asr.core.recognition.confidence import UNCALIBRATED, Calibration, calibrate
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segment
from asr.core.recognition.pieces import joined_rows
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import Tunable

LM_WEIGHT = "lm_weight"  # name of the language model's weight
OF_LM = ("word_insertion_bonus", "unknown_score")  # settings without effect if this weight is 0

Values = Mapping[str, float]  # values of a decoder's tunable settings, by name


@dataclass(frozen=True, slots=True)
class EncodedUtterance:
    """An utterance with its encoder output, so that the encoder runs only once."""

    utterance: Utterance
    segments: list[Segment]


def encode(
    recognizer: Recognizer, utterances: Sequence[Utterance], options: Inference, on_progress: Callable[[float], None]
) -> tuple[list[EncodedUtterance], list[Rejected]]:
    """Run the encoder over utterances; return the encoded and the unreadable utterances."""
    dev_set: list[EncodedUtterance] = []
    rejected: list[Rejected] = []
    for result in recognizer.segments(utterances, options):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        utterance, segments = result
        try:  # clones, because a view would keep the whole batch in memory
            dev_set.append(EncodedUtterance(utterance, [Segment(start, out.clone()) for start, out in segments]))
        except InputError as error:
            rejected.append(Rejected(utterance, str(error)))
        on_progress(utterance.duration)
    return dev_set, rejected


@dataclass(frozen=True, slots=True)
class Search:
    """All combinations of values that were tried, and their errors.

    Args:
        values: settings of each trial. The first trial has no language model; its other settings have the recogniser's
            present values.
        trials: errors of the trials.
        num_words: number of words of the references.
    """

    values: Sequence[Values]
    trials: Trials
    num_words: int


def search_values(
    recognizer: Recognizer, dev_set: Sequence[EncodedUtterance], on_trial: Callable[[Values, ErrorCounts], None]
) -> Search:
    """Try values of the decoder's tunable settings.

    For two settings, all combinations are tried. For more settings, all combinations of each pair are tried with the
    best values so far of the other settings, until no pair improves. Except for the first trial, the baseline, the
    trials do not depend on the recogniser's present values.

    Args:
        recognizer: recogniser whose decoder is tuned; its normaliser is used to count errors.
        dev_set: utterances on which errors are counted.
        on_trial: called with the values and errors of each trial.
    """
    tunable = recognizer.decode.tunable
    evidence = [
        (encoded.utterance, [_evidence(recognizer, segment) for segment in encoded.segments]) for encoded in dev_set
    ]
    tried: dict[tuple[float, ...], list[tuple[ErrorCounts, ErrorCounts]]] = {}

    def errors(values: tuple[float, ...]) -> tuple[int, int]:
        values = _plain(tunable, values)
        if values not in tried:
            named = dict(zip(tunable, values, strict=True))
            texts = [_texts(recognizer, *pair, named) for pair in evidence]
            tried[values] = [(count_errors(*pair), count_characters(*pair)) for pair in texts]
            on_trial(named, total(words for words, _ in tried[values]))
        words, characters = zip(*tried[values], strict=True)
        return total(words).errors, total(characters).errors

    errors(tuple(0.0 if name == LM_WEIGHT else number.value for name, number in tunable.items()))
    best = tuple(number.trials[len(number.trials) // 2] for number in tunable.values())
    improves = True
    while improves:
        before = best
        for block in combinations(range(len(tunable)), min(2, len(tunable))):
            best = min(_around(best, block, [*tunable.values()]), key=errors)
        improves = best != before and len(tunable) > 2
    counts = np.array([[(words.errors, letters.errors) for words, letters in trial] for trial in tried.values()], float)
    values = [dict(zip(tunable, trial, strict=True)) for trial in tried]
    strength = np.array([trial.get(LM_WEIGHT, 0.0) for trial in values])
    num_words = total(words for words, _ in next(iter(tried.values()))).reference_length
    return Search(values, Trials(counts[..., 0], counts[..., 1], strength), num_words)


def _around(values: tuple[float, ...], block: tuple[int, ...], numbers: Sequence[Tunable]) -> list[tuple[float, ...]]:
    """List `values`, then variants with all combinations of trial values for the settings in `block`.

    The present values come first and win ties, because `min` returns the first minimum.
    """
    trials = [numbers[index].trials if index in block else (value,) for index, value in enumerate(values)]
    return [values, *product(*trials)]


def _plain(tunable: Mapping[str, Tunable], values: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values, with 0 for settings that have no effect, so that equivalent values become one trial."""
    named = dict(zip(tunable, values, strict=True))
    if named.get(LM_WEIGHT) == 0:
        named |= {name: 0.0 for name in OF_LM if name in named}
    return tuple(named.values())


def _evidence(recognizer: Recognizer, segment: Segment) -> object:
    out = segment.encoder_out
    return recognizer.evidence(joined_rows([out]))


def _texts(recognizer: Recognizer, utterance: Utterance, evidence: Sequence[object], values: Values) -> tuple[str, str]:
    """Return the reference and the text recognised with these values, both normalised for scoring."""
    texts = [recognizer.text(recognizer.search(segment, values)[0][0]) for segment in evidence]
    normalize = recognizer.model.scored_by
    return normalize(utterance.text), normalize(" ".join(filter(None, texts)))


@dataclass(frozen=True, slots=True)
class Confidence:
    """Quality of a recogniser's confidence on a dev set.

    Args:
        calibration: the fitted curve.
        num_words: number of recognised words.
        right: fraction of correct words.
        before: mean confidence before calibration.
        after: mean confidence after calibration.
        auc: probability that a correct word has a higher confidence than a wrong word.
    """

    calibration: Calibration
    num_words: int
    right: float
    before: float
    after: float
    auc: float


def fit_confidence(recognizer: Recognizer, dev_set: Sequence[EncodedUtterance], values: Values) -> Confidence:
    """Calibrate the confidence of words, and set the recogniser's calibration.

    Args:
        recognizer: the recogniser to calibrate.
        dev_set: utterances on which correct words are counted.
        values: values of tunable settings that replace the decoder's own values.
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
        calibration,
        num_words=count,
        right=sum(right) / count,
        before=sum(confidences) / count,
        after=sum(after) / count,
        auc=auc(confidences, right),
    )
