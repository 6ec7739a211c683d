"""Figures of an evaluation, from its scored utterances: rates with intervals, breakdowns, confusions, calibration.

All figures can be recomputed from NAME.utterances.jsonl. They are plain JSON types; None replaces NaN and infinity.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from asr.base.text.reliability import auc, calibration_error, reliability
from asr.base.text.word_errors import Edit, ErrorCounts, align_words, total
from asr.core.evaluation.bootstrap import by_cluster, intervals
from asr.core.evaluation.utterances import Scored, show_writing, unspaced

MAX_CONFUSIONS = 50
MAX_BINS = 8
MIN_IN_BIN = 5  # utterances; with fewer utterances the rate is too uncertain
NO_SPEAKER = "(not known)"  # name of a breakdown's row for utterances without a speaker
# The edges of a breakdown's bins are chosen from these round numbers.
SECONDS = (
    *(0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40),
    *(60, 120, 300, 600, 1800, 3600, 7200, math.inf),
)
WORDS_A_SECOND = (0, 0.5, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75, 4, 4.5, 5, 6, 8, 10, math.inf)
TENTHS = tuple(tenth / 10 for tenth in range(11))
TWENTIETHS = tuple(twentieth / 20 for twentieth in range(21))


def figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """Compute the figures of a report.

    Returns:
        unspaced: whether the script of the references has no spaces (see `unspaced`).
        words, characters, raw_words: from `rates`.
        by: rows of each breakdown: utterances grouped by subset, speaker, duration and speaking rate.
        confusions: the most frequent substitutions, insertions and deletions.
        calibration: reliability of the words' confidence; None if no word was recognised.
        distribution: two histograms. Utterances by WER: the first bin has WER 0, and the last bin (`to` is None) has
            all WERs above 1; bins exclude `from` and include `to`. Words by confidence: bins include `from` and exclude
            `to`; the last bin includes 1.
    """
    alignments = [align_words(result.reference, result.transcript.text) for result in scored]
    words = [
        (word.confidence, edit.kind == "equal")
        for result, alignment in zip(scored, alignments, strict=True)
        for word, edit in zip(result.transcript.words, _recognised(alignment), strict=True)
    ]
    return {
        "utterances": len(scored),
        "speakers": len({result.utterance.speaker for result in scored} - {None}),
        "audio_seconds": math.fsum(result.utterance.duration for result in scored),
        "wrong_utterances": sum(result.counts.errors > 0 for result in scored),
        "unspaced": unspaced(scored),
        **rates(scored),
        "by": {kind: breakdown([scored], kind)[0] for kind in GROUPINGS},
        "confusions": _confusions(edit for alignment in alignments for edit in alignment),
        "calibration": _calibration(words),
        "distribution": {"wer": _wer_histogram(scored), "confidence": _confidence_histogram(words)},
    }


def rates(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """Sum the errors in words, in characters, and in words as written; compute the 95 % intervals of the error rates.

    Returns:
        For each of `words`, `characters` and `raw_words`: the counts, the `rate`, its `interval` over utterances and
        its `speaker_interval` (see `bootstrap`), which is None unless all speakers are known. The counts of
        `raw_words` are 0 if references have neither case nor punctuation (see `show_writing`).
    """
    kinds: dict[str, list[ErrorCounts]] = {
        "words": [result.counts for result in scored],
        "characters": [result.characters for result in scored],
        "raw_words": [result.raw_counts for result in scored],
    }
    errors = np.array(
        [[of_utterance.errors for of_utterance in counts] for counts in kinds.values()], dtype=np.float64
    ).T
    lengths = np.array(
        [[of_utterance.reference_length for of_utterance in counts] for counts in kinds.values()], dtype=np.float64
    ).T
    by_utterance = intervals(errors, lengths)
    speakers = known_speakers(scored)
    by_speaker = intervals(by_cluster(errors, speakers), by_cluster(lengths, speakers)) if speakers else [None] * 3
    if not show_writing(scored):
        kinds["raw_words"] = []
        by_utterance[2], by_speaker[2] = None, None
    return {
        name: total(counts).as_dict() | {"interval": _listed(interval), "speaker_interval": _listed(speaker_interval)}
        for (name, counts), interval, speaker_interval in zip(kinds.items(), by_utterance, by_speaker, strict=True)
    }


def known_speakers(scored: Sequence[Scored]) -> list[str]:
    """Return the speaker of each utterance; [] if the speaker of any utterance is unknown."""
    speakers = [result.utterance.speaker for result in scored if result.utterance.speaker is not None]
    return speakers if len(speakers) == len(scored) else []


def breakdown(systems: Sequence[Sequence[Scored]], kind: str) -> list[list[dict[str, Any]]]:
    """Group utterances, and sum the errors of each group, with 95 % intervals over utterances.

    Args:
        systems: results of each system for the same utterances in the same order. The utterances of the first system
            determine the groups. The intervals of all systems use the same draws.
        kind: `subset`: in the order in which the subsets first occur; `speaker`: sorted by name, and no groups if no
            speaker is known; `duration`, `speaking_rate`: bins with round edges, ascending.

    Returns:
        For each system, one row per group.
    """
    rows = [
        _rows(name, [[system[index] for index in indices] for system in systems])
        for name, indices in GROUPINGS[kind](systems[0]).items()
    ]
    return [list(of_system) for of_system in zip(*rows, strict=True)] or [[] for _ in systems]


def _rows(name: str, systems: Sequence[Sequence[Scored]]) -> list[dict[str, Any]]:
    errors = np.array([[result.counts.errors for result in scored] for scored in systems], dtype=np.float64).T
    lengths = np.array(
        [[result.counts.reference_length for result in scored] for scored in systems], dtype=np.float64
    ).T
    rows = []
    for scored, interval in zip(systems, intervals(errors, lengths), strict=True):
        counts = total(result.counts for result in scored).as_dict()
        sums = {key: counts[key] for key in ("rate", "errors", "reference_length")}
        rows.append({"name": name, "utterances": len(scored)} | sums | {"interval": _listed(interval)})
    return rows


def _listed(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


Groups = dict[str, list[int]]  # the name of each group, and the positions of its utterances


def _grouped(names: Iterable[tuple[str, int]]) -> Groups:
    groups: Groups = {}
    for name, index in names:
        groups.setdefault(name, []).append(index)
    return groups


def _by_subset(scored: Sequence[Scored]) -> Groups:
    return _grouped((result.subset, index) for index, result in enumerate(scored))


def _by_speaker(scored: Sequence[Scored]) -> Groups:
    """Group by speaker, sorted by name, unknown speakers last; no groups if all speakers are unknown."""
    speakers = [result.utterance.speaker for result in scored]
    if all(speaker is None for speaker in speakers):
        return {}
    in_order = sorted(range(len(speakers)), key=lambda index: (speakers[index] is None, speakers[index] or ""))
    return _grouped((NO_SPEAKER if speakers[index] is None else str(speakers[index]), index) for index in in_order)


def _by_duration(scored: Sequence[Scored]) -> Groups:
    return _by_number([result.utterance.duration for result in scored], SECONDS, "s")


def _by_speaking_rate(scored: Sequence[Scored]) -> Groups:
    """Group by the number of reference words per second."""
    rates = [result.counts.reference_length / result.utterance.duration for result in scored]
    return _by_number(rates, WORDS_A_SECOND, "words/s")


def _by_number(numbers: Sequence[float], edges: Sequence[float], unit: str) -> Groups:
    in_order = sorted(range(len(numbers)), key=numbers.__getitem__)
    chosen = choose_edges(numbers, edges)
    names = [_between(low, high, unit) for low, high in pairwise(chosen)]
    return _grouped((names[bisect_right(chosen[1:-1], numbers[index])], index) for index in in_order)


GROUPINGS: dict[str, Callable[[Sequence[Scored]], Groups]] = {
    "subset": _by_subset,
    "speaker": _by_speaker,
    "duration": _by_duration,
    "speaking_rate": _by_speaking_rate,
}


def _between(low: float, high: float, unit: str) -> str:
    return f"{low:g} {unit} and more" if high == math.inf else f"{low:g} to {high:g} {unit}"


def choose_edges(numbers: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Choose edges so that each bin holds at least an eighth of the numbers, and at least five.

    A bin includes its lower edge and excludes its upper edge. There are at most 8 bins, and fewer if many numbers lie
    between two neighbouring edges.

    Args:
        numbers: numbers to put into bins, not negative.
        edges: candidates, ascending, from 0 to infinity.
    """
    numbers = sorted(numbers)
    if not numbers:
        return []
    enough = max(MIN_IN_BIN, len(numbers) / MAX_BINS)
    chosen = [max(edge for edge in edges if edge <= numbers[0] and edge < math.inf)]
    below = 0  # count of the numbers in complete bins
    for edge in edges:
        count = sum(number < edge for number in numbers)
        if chosen[-1] < edge < math.inf and count - below >= enough and len(numbers) - count >= enough:
            chosen.append(edge)
            below = count
    return [*chosen, min((edge for edge in edges if edge > numbers[-1]), default=math.inf)]


def _confusions(edits: Iterable[Edit]) -> dict[str, list[dict[str, Any]]]:
    """Count how often each error occurs; sort errors by descending frequency, then by their words."""
    counted = Counter(edit for edit in edits if edit.kind != "equal")
    in_order = sorted(counted.items(), key=lambda item: (-item[1], item[0].reference or "", item[0].hypothesis or ""))
    confusions: dict[str, list[dict[str, Any]]] = {"substitutions": [], "insertions": [], "deletions": []}
    for edit, count in in_order:
        if edit.kind == "substitution":
            words = {"reference": edit.reference, "hypothesis": edit.hypothesis}
        else:
            words = {"word": edit.reference if edit.kind == "deletion" else edit.hypothesis}
        confusions[f"{edit.kind}s"].append({**words, "count": count})
    return {kind: rows[:MAX_CONFUSIONS] for kind, rows in confusions.items()}


def _recognised(alignment: Iterable[Edit]) -> list[Edit]:
    """Return the edits with a word of the hypothesis: all except deletions."""
    return [edit for edit in alignment if edit.hypothesis is not None]


def _calibration(words: Sequence[tuple[float, bool]]) -> dict[str, Any] | None:
    if not words:
        return None
    confidences, right = [confidence for confidence, _ in words], [is_right for _, is_right in words]
    bins = reliability(confidences, right)
    area = auc(confidences, right)
    return {
        "words": len(words),
        "ece": calibration_error(bins),
        "auc": None if math.isnan(area) else area,
        "mean_confidence": math.fsum(confidences) / len(words),
        "accuracy": sum(right) / len(words),
        "bins": [
            {
                "from": bucket.lowest,
                "to": bucket.highest,
                "words": bucket.words,
                "confidence": bucket.confidence,
                "accuracy": bucket.accuracy,
            }
            for bucket in bins
        ],
    }


def _wer_histogram(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Count utterances by WER, in bins: exactly 0, tenths up to 1, above 1 (insertions without a reference, too)."""
    counts = [result.counts for result in scored]
    wers = [of.rate if of.reference_length else math.inf if of.errors else 0.0 for of in counts]
    rows: list[dict[str, Any]] = [{"from": 0.0, "to": 0.0, "utterances": sum(rate == 0 for rate in wers)}]
    for low, high in pairwise(TENTHS):
        rows.append({"from": low, "to": high, "utterances": sum(low < rate <= high for rate in wers)})
    return [*rows, {"from": 1.0, "to": None, "utterances": sum(rate > 1 for rate in wers)}]


def _confidence_histogram(words: Sequence[tuple[float, bool]]) -> list[dict[str, Any]]:
    """Count correct and wrong words by confidence."""
    counted = Counter((min(bisect_right(TWENTIETHS, confidence), 20), is_right) for confidence, is_right in words)
    edges = enumerate(pairwise(TWENTIETHS), start=1)
    return [
        {"from": low, "to": high, "right": counted[number, True], "wrong": counted[number, False]}
        for number, (low, high) in edges
    ]
