"""The errors of each utterance of a test manifest, which runs store to be compared with each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asr.core.evaluation.analysis import known_speakers
from asr.core.evaluation.comparison import counts_of
from asr.core.evaluation.utterances import Scored, unspaced
from asr.errors import InputError


@dataclass(frozen=True, slots=True)
class UtteranceCounts:
    """Errors of one recogniser in each utterance of a manifest; all sequences have one entry per utterance.

    Args:
        unit: what is counted, as in `asr.core.evaluation.comparison.compare`: word or character.
        references: SHA-256 of the ids and the normalised references; evaluations with equal values can be compared.
        ids: unique ids of the utterances.
        speakers: their speakers; empty if the speaker of any utterance is unknown.
        errors: number of errors.
        lengths: number of words or characters in the reference.
    """

    unit: str
    references: str
    ids: Sequence[str]
    speakers: Sequence[str]
    errors: Sequence[int]
    lengths: Sequence[int]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of counts.json."""
        return {name: getattr(self, name) for name in self.__slots__}


def count_utterances(scored: Sequence[Scored]) -> UtteranceCounts:
    """Count the errors of each utterance of one manifest."""
    unit = "character" if unspaced(scored) else "word"
    counts = [counts_of(result, unit) for result in scored]
    texts = sorted((result.utterance.id, result.reference) for result in scored)
    return UtteranceCounts(
        unit,
        hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        [result.utterance.id for result in scored],
        known_speakers(scored),
        [of_utterance.errors for of_utterance in counts],
        [of_utterance.reference_length for of_utterance in counts],
    )


def parse_counts(entry: object) -> UtteranceCounts:
    """Parse an entry of counts.json.

    Raises:
        InputError: the entry is damaged.
    """
    match entry:
        case {
            "unit": "word" | "character" as unit,
            "references": str(references),
            "ids": list(ids),
            "speakers": list(speakers),
            "errors": list(errors),
            "lengths": list(lengths),
        } if (
            all(isinstance(value, str) for value in (*ids, *speakers))
            and all(type(value) is int and 0 <= value < 1 << 31 for value in (*errors, *lengths))
            and len(ids) == len({*ids}) == len(errors) == len(lengths)
            and len(speakers) in (0, len(ids))
        ):
            return UtteranceCounts(unit, references, ids, speakers, errors, lengths)
    raise InputError("an entry of counts.json must have unit, references, and a value for each utterance; it does not.")
