"""Word errors: counted by utterance, summed over a set, divided once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import jiwer


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Word errors of any number of utterances; sums of these, over utterances or ranks, are these again."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_words: int = 0
    utterances: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        pairs = zip(self.as_tuple(), other.as_tuple(), strict=True)
        return ErrorCounts(*(mine + theirs for mine, theirs in pairs))

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """The counts in the order of the fields: what ranks exchange."""
        return self.substitutions, self.insertions, self.deletions, self.reference_words, self.utterances

    @property
    def errors(self) -> int:
        """Substitutions, insertions and deletions."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def wer(self) -> float:
        """Word error rate as a fraction; without a reference word 0 if nothing was recognised, else infinite."""
        if self.utterances == 0:
            return math.nan
        if self.reference_words == 0:
            return float("inf") if self.errors else 0.0
        return self.errors / self.reference_words

    def as_dict(self) -> dict[str, float | int | None]:
        """The counts under the names of results.json; a WER that is not finite is null, as JSON knows no infinity."""
        return {
            "wer": self.wer if math.isfinite(self.wer) else None,
            "substitutions": self.substitutions,
            "insertions": self.insertions,
            "deletions": self.deletions,
            "reference_words": self.reference_words,
            "utterances": self.utterances,
        }


def count_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Align two texts by words (split at white space) with the fewest edits, through jiwer."""
    words, recognised = reference.split(), hypothesis.split()
    alignment = jiwer.process_words(" ".join(words), " ".join(recognised))
    return ErrorCounts(alignment.substitutions, alignment.insertions, alignment.deletions, len(words), 1)


def right_words(reference: str, hypothesis: str) -> list[bool]:
    """Tell which words of the hypothesis the alignment pairs with the same word of the reference."""
    words = hypothesis.split()
    right = [False] * len(words)
    alignment = jiwer.process_words(" ".join(reference.split()), " ".join(words))
    for chunk in alignment.alignments[0]:
        if chunk.type == "equal":
            right[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (chunk.hyp_end_idx - chunk.hyp_start_idx)
    return right


def total(counts: Iterable[ErrorCounts]) -> ErrorCounts:
    """Sum the counts of a set."""
    return sum(counts, ErrorCounts())
