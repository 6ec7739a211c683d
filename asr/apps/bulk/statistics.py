"""Statistics of a report's texts, computed for each part and summed over parts."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asr.core.recognition.transcript import Transcript

CONFIDENCE_BINS = 20  # number of bins of the histogram of utterances' confidence, from 0 to 1
NUM_LISTED = 10  # length of each list in `LISTS`
MIN_EMPTY_SECONDS = 2.0  # minimum duration for the list "emptiest"; shorter utterances often have no words
SHOWN_CHARACTERS = 300  # maximum number of characters shown of a listed text
LISTS = ("longest", "emptiest", "repetitive")  # texts with most words, fewest words per second, most repetitions


def part_statistics(transcripts: Sequence[tuple[str, Transcript]]) -> dict[str, Any]:
    """Compute the statistics of a part's transcripts."""
    histogram = [0] * CONFIDENCE_BINS
    for _, transcript in transcripts:
        if transcript.confidence is not None:
            histogram[min(int(transcript.confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)] += 1
    long_enough = [pair for pair in transcripts if pair[1].duration >= MIN_EMPTY_SECONDS]
    return {
        "num_texts": len(transcripts),
        "num_without_words": sum(not transcript.words for _, transcript in transcripts),
        "num_words": sum(len(transcript.words) for _, transcript in transcripts),
        "confidence": histogram,
        "longest": _listed(transcripts, lambda transcript: float(len(transcript.words))),
        "emptiest": _listed(long_enough, lambda transcript: -len(transcript.words) / transcript.duration),
        "repetitive": _listed(transcripts, lambda transcript: repetition(transcript.text)),
    }


def repetition(text: str) -> float:
    """Return the factor by which zlib compresses a text; this factor is above 2.4 for repetitive texts.

    *Source*: Radford et al. 2022, arXiv:2212.04356, section 4.5.
    """
    content = text.encode("utf-8", "surrogateescape")
    return len(content) / len(zlib.compress(content))


def _listed(
    transcripts: Sequence[tuple[str, Transcript]], value: Callable[[Transcript], float]
) -> list[dict[str, Any]]:
    """List the transcripts with the highest values."""
    entries = [
        {
            "id": name,
            "value": round(value(transcript), 4),
            "seconds": round(transcript.duration, 3),
            "text": transcript.text[:SHOWN_CHARACTERS],
        }
        for name, transcript in transcripts
    ]
    return _first(entries)


def _first(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ordered = sorted(entries, key=lambda entry: (-entry["value"], entry["id"]))
    return [dict(entry) for entry in ordered[:NUM_LISTED]]


def summed_statistics(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the statistics of parts, one at a time."""
    total: dict[str, Any] = part_statistics([])
    for record in records:
        for key in ("num_texts", "num_without_words", "num_words"):
            total[key] += record[key]
        total["confidence"] = [a + b for a, b in zip(total["confidence"], record["confidence"], strict=True)]
        for key in LISTS:
            total[key] = _first([*total[key], *record[key]])
    return total
