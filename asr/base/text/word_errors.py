"""Word and character errors: counted per utterance, summed over a set, divided once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import jiwer


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Errors of any number of utterances, in words or in characters; `+` sums them over utterances and ranks.

    Args:
        substitutions: number of words (or characters) recognised as a different word (or character).
        insertions: number of words (or characters) without a counterpart in the reference.
        deletions: number of words (or characters) of the reference without a counterpart in the hypothesis.
        reference_length: number of words (or characters) of the references.
        utterances: number of utterances.
    """

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_length: int = 0
    utterances: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        pairs = zip(self.as_tuple(), other.as_tuple(), strict=True)
        return ErrorCounts(*(mine + theirs for mine, theirs in pairs))

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """Return the counts in the order of the fields, to exchange them between ranks."""
        return self.substitutions, self.insertions, self.deletions, self.reference_length, self.utterances

    @property
    def errors(self) -> int:
        """Substitutions, insertions and deletions."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float:
        """WER or CER as a fraction; NaN if the references are empty, with and without insertions."""
        return self.errors / self.reference_length if self.reference_length else math.nan

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the counts for JSON; a rate that does not exist becomes None."""
        return {
            "rate": self.rate if self.reference_length else None,
            "substitutions": self.substitutions,
            "insertions": self.insertions,
            "deletions": self.deletions,
            "errors": self.errors,
            "reference_length": self.reference_length,
        }


@dataclass(frozen=True, slots=True)
class Edit:
    """A pair of aligned words; None is the missing word of an insertion or deletion."""

    kind: Literal["equal", "substitution", "insertion", "deletion"]
    reference: str | None
    hypothesis: str | None


def count_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the errors in words, which are separated by white space; jiwer aligns them with the fewest edits."""
    words = reference.split()
    alignment = jiwer.process_words(" ".join(words), " ".join(hypothesis.split()))
    return ErrorCounts(alignment.substitutions, alignment.insertions, alignment.deletions, len(words), 1)


def count_characters(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the errors in characters; jiwer aligns them with the fewest edits.

    A character is a Unicode code point, so a combining mark counts separately. White space between words counts as one
    character; white space at the ends does not count.
    """
    characters = " ".join(reference.split())
    alignment = jiwer.process_characters(characters, " ".join(hypothesis.split()))
    return ErrorCounts(alignment.substitutions, alignment.insertions, alignment.deletions, len(characters), 1)


def align_words(reference: str, hypothesis: str) -> list[Edit]:
    """Return the word alignment whose errors `count_errors` counts.

    Each word of both texts is in exactly one edit, in order.
    """
    words, recognised = reference.split(), hypothesis.split()
    edits: list[Edit] = []
    for chunk in jiwer.process_words(" ".join(words), " ".join(recognised)).alignments[0]:
        expected = words[chunk.ref_start_idx : chunk.ref_end_idx]
        got = recognised[chunk.hyp_start_idx : chunk.hyp_end_idx]
        match chunk.type:
            case "equal":
                edits += [Edit("equal", *pair) for pair in zip(expected, got, strict=True)]
            case "substitute":
                edits += [Edit("substitution", *pair) for pair in zip(expected, got, strict=True)]
            case "insert":
                edits += [Edit("insertion", None, word) for word in got]
            case "delete":
                edits += [Edit("deletion", word, None) for word in expected]
    return edits


def right_words(reference: str, hypothesis: str) -> list[bool]:
    """Return for each word of the hypothesis whether it is aligned with an equal word of the reference."""
    return [edit.kind == "equal" for edit in align_words(reference, hypothesis) if edit.hypothesis is not None]


def total(counts: Iterable[ErrorCounts]) -> ErrorCounts:
    """Sum the counts of a set."""
    return sum(counts, ErrorCounts())
