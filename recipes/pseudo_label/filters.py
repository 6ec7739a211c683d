"""Selection of automatic texts for training, with the reason for each excluded text."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asr.apps.bulk.statistics import repetition
from asr.base.text.word_errors import count_errors
from recipes.pseudo_label.texts import AutomaticText

MAX_PHRASE_WORDS = 4  # maximum length of the phrases whose repetitions are counted
MAX_COMPRESSION = 2.4  # compression ratio of a text by zlib: Whisper's limit, arXiv:2212.04356, section 4.5
MARKS = ("⁇", "\N{REPLACEMENT CHARACTER}")  # SentencePiece's text for an unknown token; replacement for invalid bytes


@dataclass(frozen=True)
class Limits:
    """Conditions that a text must meet to be used for training.

    Args:
        min_confidence: minimum of the calibrated mean confidence of its words.
        seconds: minimum and maximum length of the audio.
        words: minimum and maximum number of words.
        characters_per_second: minimum and maximum number of characters per second, without spaces.
        max_repeats: maximum number of consecutive occurrences of a phrase of at most four words.
        characters: accepted characters, besides spaces; None: letters, digits and punctuation of any script.
        max_disagreement: maximum number of word errors between the two models' texts, per word of the longer text.
    """

    min_confidence: float
    seconds: tuple[float, float]
    words: tuple[int, int]
    characters_per_second: tuple[float, float]
    max_repeats: int
    characters: frozenset[str] | None
    max_disagreement: float


Reason = Callable[[AutomaticText], bool]


def reasons(limits: Limits, second: Mapping[str, AutomaticText] | None) -> dict[str, Reason]:
    """Return a dict from each reason to the test that excludes a text for this reason, in the order of application.

    Args:
        limits: limits of the filters.
        second: texts of a second model by id; None: there is no second model.
    """
    tests: dict[str, Reason] = {
        "no words": lambda text: not text.utterance.text.split(),
        "duration": lambda text: not _within(text.utterance.duration, limits.seconds),
        "number of words": lambda text: not _within(len(text.utterance.text.split()), limits.words),
        "characters": lambda text: not has_only(text.utterance.text, limits.characters),
        "speaking rate": lambda text: not _within(characters_per_second(text), limits.characters_per_second),
        "repetition": lambda text: is_repetitive(text.utterance.text, limits.max_repeats),
    }
    if second is not None:
        tests["not in the second output"] = lambda text: text.utterance.id not in second
        tests["disagreement"] = lambda text: (
            disagreement(text.utterance.text, second[text.utterance.id].utterance.text) > limits.max_disagreement
        )
    return tests | {"confidence": lambda text: (text.confidence or 0.0) < limits.min_confidence}


def sort_out(
    texts: Sequence[AutomaticText], tests: Mapping[str, Reason], keep: float
) -> tuple[list[AutomaticText], dict[str, list[AutomaticText]]]:
    """Return the texts for training, in the given order, and a dict from each reason to the texts excluded for it.

    Args:
        texts: any number of texts.
        tests: dict from each reason to its test; the first test that excludes a text gives the reason.
        keep: fraction of the passing texts to train on; the texts of highest confidence are chosen.
    """
    left_out: dict[str, list[AutomaticText]] = {name: [] for name in tests}
    passed: list[AutomaticText] = []
    for text in texts:
        reason = next((name for name, applies in tests.items() if applies(text)), None)
        (passed if reason is None else left_out[reason]).append(text)
    ranked = sorted(passed, key=lambda text: (-(text.confidence or 0.0), text.utterance.id))
    chosen = {text.utterance.id for text in ranked[: round(keep * len(ranked))]}
    left_out["among the least confident"] = [text for text in passed if text.utterance.id not in chosen]
    return [text for text in passed if text.utterance.id in chosen], left_out


def characters_per_second(text: AutomaticText) -> float:
    """Return the number of characters per second, without spaces."""
    return len("".join(text.utterance.text.split())) / text.utterance.duration


def is_repetitive(text: str, max_repeats: int) -> bool:
    """Whether a phrase of up to four words is repeated too often in a row, or zlib compresses the text too strongly."""
    return most_repeats(text.split()) > max_repeats or repetition(text) > MAX_COMPRESSION


def most_repeats(words: Sequence[str]) -> int:
    """Return the maximum number of consecutive occurrences of a phrase of at most four words; 1: no repetition."""
    largest = min(len(words), 1)
    for length in range(1, MAX_PHRASE_WORDS + 1):
        run = 0  # consecutive words that equal the word `length` positions before
        for index in range(length, len(words)):
            run = run + 1 if words[index] == words[index - length] else 0
            largest = max(largest, run // length + 1)
    return largest


def has_only(text: str, characters: frozenset[str] | None) -> bool:
    """Whether a text has only spaces and these characters; None: only spaces, letters, digits and punctuation."""
    written = set("".join(text.split()))
    if characters is not None:
        return written <= characters
    return not written & {*MARKS} and all(unicodedata.category(character)[0] in "LMNP" for character in written)


def disagreement(text: str, other: str) -> float:
    """Return the word errors between two texts, divided by the words of the longer text; 0 for two empty texts."""
    longest = max(len(text.split()), len(other.split()))
    return count_errors(text, other).errors / longest if longest else 0.0


def _within(number: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= number <= bounds[1]
