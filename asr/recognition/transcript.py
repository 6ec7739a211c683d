"""What was recognised in a recording: text, words with times and confidence, alternatives."""

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
        text: normalised.
        start: when it begins, in seconds from the beginning of the recording (of the utterance, if that is a stretch).
        end: when it ends, in seconds.
        confidence: that it is right, from 0 to 1.
    """

    text: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another reading of the recording, and its score as the decoder ranks it (natural logarithm)."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was recognised in one recording.

    Args:
        words: in order.
        alternatives: the readings there are, the best first; the first is the transcript itself.
        duration: of the recording, in seconds.
        speech: False where nothing was heard that may be speech, and so the net was not asked.
    """

    words: tuple[Word, ...]
    alternatives: tuple[Alternative, ...]
    duration: float
    speech: bool = True

    @property
    def text(self) -> str:
        """The words, parted by spaces."""
        return " ".join(word.text for word in self.words)

    @property
    def confidence(self) -> float | None:
        """The mean of the words' confidences: the share of them to expect right. None without words."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else None

    def normalized(self, normalize: Callable[[str], str]) -> Transcript:
        """The transcript as a normaliser writes it, which may change, split, join and drop words.

        Words that it does not write as it would write each of them alone, `25` for `twenty five`, begin and end with
        the words that they stand for, and are as sure as all of these together.
        """
        alone = [(word, text) for word in self.words for text in normalize(word.text).split()]
        together = normalize(self.text).split()
        matcher = SequenceMatcher(None, [text for _, text in alone], together, autojunk=False)
        words: list[Word] = []
        for kind, begin, end, first, last in matcher.get_opcodes():
            if kind == "equal":
                words += [replace(word, text=text) for word, text in alone[begin:end]]
                continue
            heard = [word for word, _ in alone[begin:end] or alone[max(begin - 1, 0) : begin + 1]] or self.words
            sure = math.prod(word.confidence for word in heard)
            words += [Word(text, heard[0].start, heard[-1].end, sure) for text in together[first:last]]
        alternatives = (replace(alternative, text=normalize(alternative.text)) for alternative in self.alternatives)
        return Transcript(tuple(words), tuple(alternatives), self.duration, self.speech)

    def rounded(self) -> Transcript:
        """The transcript as it is written: times to a millisecond, confidence to four digits."""
        words = (
            Word(word.text, round(word.start, 3), round(word.end, 3), round(word.confidence, 4)) for word in self.words
        )
        return replace(self, words=tuple(words))

    def as_dict(self) -> dict[str, Any]:
        """The transcript under the names of `asr.transcribe --format json`."""
        return {
            "text": self.text,
            "duration": round(self.duration, 3),
            "speech": self.speech,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "score": round(self.alternatives[0].score, 4) if self.alternatives else None,
            "words": [asdict(word) for word in self.rounded().words],
            "alternatives": [
                {"text": alternative.text, "score": round(alternative.score, 4)} for alternative in self.alternatives
            ],
        }
