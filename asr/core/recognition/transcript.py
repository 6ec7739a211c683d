"""The transcript of a recording: text, words with times and confidences, alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from typing import Any


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a transcript.

    Args:
        text: normalised text.
        start: start in seconds from the beginning of the recording, or of the utterance if it is part of a recording.
        end: end in seconds.
        confidence: confidence that the word is correct, from 0 to 1.
    """

    text: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A hypothesis of the recording's text, with the score (a natural logarithm) by which the decoder ranks it."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """Transcript of one recording.

    Args:
        words: words in order.
        alternatives: hypotheses, best first; the first one is the transcript itself.
        duration: duration of the recording, in seconds.
        speech: False if the recording cannot contain speech; the network did not run in this case.
        language: the language that the model wrote last as a tag, such as "de-DE"; None if it writes no tags.
    """

    words: tuple[Word, ...]
    alternatives: tuple[Alternative, ...]
    duration: float
    speech: bool = True
    language: str | None = None

    @property
    def text(self) -> str:
        """The words, separated by spaces."""
        return " ".join(word.text for word in self.words)

    @property
    def confidence(self) -> float | None:
        """Mean confidence of the words: the expected fraction of correct words. None without words."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else None

    def normalized(self, normalize: Callable[[str], str]) -> Transcript:
        """Apply a normaliser, which may change, split, join and drop words.

        A normaliser may replace several words together, such as `twenty five` by `25`. Each new word then gets the
        start and end of the words that it replaces, and the product of their confidences.
        """
        alone = [(word, text) for word in self.words for text in normalize(word.text).split()]
        together = normalize(self.text).split()
        matcher = SequenceMatcher(None, [text for _, text in alone], together, autojunk=False)
        words: list[Word] = []
        for kind, begin, end, first, last in matcher.get_opcodes():
            if kind == "equal":
                words += [replace(word, text=text) for word, text in alone[begin:end]]
                continue
            replaced = [word for word, _ in alone[begin:end] or alone[max(begin - 1, 0) : begin + 1]] or self.words
            confidence = math.prod(word.confidence for word in replaced)
            words += [Word(text, replaced[0].start, replaced[-1].end, confidence) for text in together[first:last]]
        alternatives = (replace(alternative, text=normalize(alternative.text)) for alternative in self.alternatives)
        return replace(self, words=tuple(words), alternatives=tuple(alternatives))

    def rounded(self) -> Transcript:
        """Round times to milliseconds and confidences to four digits, as they are written to files."""
        words = (
            Word(word.text, round(word.start, 3), round(word.end, 3), round(word.confidence, 4)) for word in self.words
        )
        return replace(self, words=tuple(words))

    def as_dict(self) -> dict[str, Any]:
        """Return the transcript with the keys of `asr.transcribe --format json`."""
        return {
            "text": self.text,
            **({} if self.language is None else {"language": self.language}),
            "duration": round(self.duration, 3),
            "speech": self.speech,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "score": round(self.alternatives[0].score, 4) if self.alternatives else None,
            "words": [asdict(word) for word in self.rounded().words],
            "alternatives": [
                {"text": alternative.text, "score": round(alternative.score, 4)} for alternative in self.alternatives
            ],
        }
