"""Compare two evaluations of the same utterances, with significance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asr.base.text.numbers import counted, interval, percent, points, probability
from asr.base.text.word_errors import ErrorCounts
from asr.core.evaluation.analysis import known_speakers, rates
from asr.core.evaluation.bootstrap import Difference, by_cluster, difference
from asr.core.evaluation.utterances import Scored, unspaced
from asr.errors import InputError, shown

SHOWN = 3  # utterances named in an error
# Of intervals that exclude 0 in half of all tests, four of five do with this many times the utterances.
POWER = ((1.96 + 0.84) / 1.96) ** 2

Pairs = list[tuple[Scored, Scored]]


def compare(a: Sequence[Scored], b: Sequence[Scored]) -> dict[str, Any]:
    """Compare two evaluations of the same utterances by a paired bootstrap; return plain JSON types.

    Differences are second minus first, so negative differences are improvements. Speakers are taken from the first
    evaluation.

    Returns:
        `unit`: what is counted: character if the script of the references has no spaces (`unspaced`), otherwise word.
        `a` and `b`: like `words` or `characters` of `analysis.rates`. `difference`: the difference of the rates; its
        interval and p-value over utterances and, if all speakers are known, over speakers (None for samples that are
        too small for `bootstrap`).
        `utterance_wins` and `speaker_wins`: the numbers of utterances and of speakers with fewer errors
        in `a`, with fewer errors in `b`, and with equal errors (`tie`). `speakers`: the errors of each speaker.
        `changed`: the utterances with different numbers of errors, largest difference first.
    """
    pairs = match(a, b)
    results_a, results_b = [result for result, _ in pairs], [result for _, result in pairs]
    unit = "character" if unspaced(results_a) else "word"
    words_a, words_b = rates(results_a)[f"{unit}s"], rates(results_b)[f"{unit}s"]
    both = words_a["rate"] is not None and words_b["rate"] is not None
    counts = [(counts_of(result_a, unit), counts_of(result_b, unit)) for result_a, result_b in pairs]
    sums = np.array([(a.errors, b.errors, a.reference_length) for a, b in counts], dtype=np.float64)
    speakers = known_speakers(results_a)
    clusters = by_cluster(sums, speakers) if speakers else sums[:0]
    over_utterances, over_speakers = difference(*sums.T), difference(*clusters.T)
    rows = [
        {
            "name": name,
            "a_errors": int(errors_a),
            "b_errors": int(errors_b),
            "reference_length": int(length),
            "utterances": count,
        }
        for (name, count), (errors_a, errors_b, length) in zip(_counted(speakers), clusters, strict=True)
    ]
    return {
        "utterances": len(pairs),
        "unit": unit,
        "a": words_a,
        "b": words_b,
        "difference": {
            "rate": words_b["rate"] - words_a["rate"] if both else None,
            **_difference("", over_utterances),
            **_difference("speaker_", over_speakers),
        },
        "utterance_wins": _wins(sums[:, 1] - sums[:, 0]),
        "speaker_wins": _wins(clusters[:, 1] - clusters[:, 0]) if speakers else None,
        "speakers": rows,
        "changed": changed(pairs, unit),
    }


def counts_of(result: Scored, unit: str) -> ErrorCounts:
    """Return an utterance's errors in words or in characters; `unit` is word or character."""
    return result.characters if unit == "character" else result.counts


def rate_name(comparison: Mapping[str, Any]) -> str:
    """Return the name of the rate that is compared: CER for references without spaces between words, or WER."""
    return "CER" if comparison.get("unit") == "character" else "WER"


def change(comparison: Mapping[str, Any]) -> str:
    """Format the rates' difference in percentage points and, unless the first rate is 0, relative to that rate."""
    rate, base = comparison["difference"]["rate"], comparison["a"]["rate"]
    if rate is None:
        return "no rate, because the references have no words"
    relative = f" ({100 * rate / base:+.1f} % relative)" if base else ""
    return f"{points(rate)} points{relative}"


def verdict(comparison: Mapping[str, Any]) -> str:
    """Return a sentence that states which model is better, or why there is no verdict.

    If speakers are known, the interval over speakers decides, because it is also valid for new speakers.
    """
    rate, (a, b) = comparison["difference"]["rate"], (comparison[key]["errors"] for key in ("a", "b"))
    if rate is None:
        return "No verdict: the references have no words."
    if not comparison["changed"]:
        return "No verdict: in each utterance both models have the same number of errors."
    unit, ends = deciding_interval(comparison)
    if ends is None:
        return "No verdict: there are too few utterances to tell a better model from chance."
    over = f"the 95 % interval over {unit}s, {interval(ends, points)} points,"
    if ends[0] > 0 or ends[1] < 0:
        better, fewer = ("B", a - b) if rate < 0 else ("A", b - a)
        return f"{better} is better: it makes {counted(fewer, 'fewer error')}, and {over} excludes 0."
    than = "fewer" if b < a else "more"
    errors = "errors are equal" if a == b else f"B makes {counted(abs(a - b), f'{than} error')}"
    return f"No verdict: {errors}, but {over} includes 0; the difference may be chance."


def deciding_interval(comparison: Mapping[str, Any]) -> tuple[str, Sequence[float] | None]:
    """Return the sampling unit, "speaker" or "utterance", and the interval of the difference that a verdict uses.

    The interval is None if there are too few units.
    """
    difference = comparison["difference"]
    unit = "speaker" if difference["speaker_interval"] else "utterance"
    return unit, difference["speaker_interval" if unit == "speaker" else "interval"]


def is_shown(comparison: Mapping[str, Any], better: str) -> bool:
    """Return whether one of two models, "a" or "b", is shown to be better: the interval excludes 0."""
    _, ends = deciding_interval(comparison)
    return ends is not None and (ends[0] > 0 if better == "a" else ends[1] < 0)


def num_utterances_to_show(comparison: Mapping[str, Any]) -> int:
    """Return about how many test utterances would show a difference of the size that was found, in four of five tests.

    The width of an interval falls with the square root of the number of utterances, and of speakers if these are known.

    Returns:
        The number; 0 if no difference was found, or there is no interval.
    """
    rate, (_, ends) = comparison["difference"]["rate"], deciding_interval(comparison)
    if ends is None or not rate:
        return 0
    return math.ceil(comparison["utterances"] * POWER * ((ends[1] - ends[0]) / 2 / rate) ** 2)


def gain(comparison: Mapping[str, Any]) -> str:
    """Return a sentence that states whether the second of two models, the later one, is shown to be better."""
    if comparison["difference"]["rate"] is None:
        return "Not shown to be better: the references have no words."
    unit, ends = deciding_interval(comparison)
    if ends is None or ends[0] <= 0 <= ends[1]:
        why = "there are too few utterances" if ends is None else f"the 95 % interval over {unit}s includes 0"
        return f"Not shown to be better: {why}, so the difference may be chance."
    better = "better" if is_shown(comparison, "b") else "worse"
    return f"Shown to be {better}: the 95 % interval over {unit}s, {interval(ends, points)} points, excludes 0."


def before_and_after(comparison: Mapping[str, Any]) -> str:
    """Return a line with the error rate before and after, and the significance of the change."""
    difference = comparison["difference"]
    before, after = (percent(comparison[key]["rate"], 2) for key in ("a", "b"))
    line = f"{rate_name(comparison)} {before} before, {after} after: {change(comparison)}"
    if difference["rate"] is None:
        return line
    if difference["interval"] is None:
        return f"{line}; the test set is too small for an interval"
    p_value = probability(difference["p_value"], "= ")
    return f"{line}, 95 % interval {interval(difference['interval'], points)}, p {p_value}"


def match(a: Sequence[Scored], b: Sequence[Scored]) -> Pairs:
    """Pair the utterances of two evaluations by subset and id, in the order of the first evaluation.

    Raises:
        InputError: an utterance is in only one evaluation, or has different references.
    """
    firsts, seconds = ({(result.subset, result.utterance.id): result for result in scored} for scored in (a, b))
    for results, others, which in ((firsts, seconds, "first"), (seconds, firsts, "second")):
        alone = [key for key in results if key not in others]
        if alone:
            must = "both evaluations must have the same utterances, by subset and id"
            given = f"{len(alone)} of {len(results)} are only in the {which}: {_named(alone)}"
            raise InputError(f"{must}; {given}. Evaluate both models on the same manifests.")
    other = [key for key in firsts if firsts[key].reference != seconds[key].reference]
    if other:
        reference_a, reference_b = firsts[other[0]].reference, seconds[other[0]].reference
        must = "both evaluations must have the same references"
        given = (
            f"{len(other)} of {len(firsts)} differ: {_named(other)}, "
            f"{shown(reference_a)} in the first, {shown(reference_b)} in the second"
        )
        raise InputError(f"{must}; {given}. Were the manifests changed, or do the models normalise texts differently?")
    return [(firsts[key], seconds[key]) for key in firsts]


def changed(pairs: Iterable[tuple[Scored, Scored]], unit: str) -> list[dict[str, Any]]:
    """List the utterances whose numbers of errors differ, largest difference first; ties keep the given order."""
    rows = [
        {
            "id": result_a.utterance.id,
            "subset": result_a.subset,
            "change": counts_of(result_b, unit).errors - counts_of(result_a, unit).errors,
        }
        for result_a, result_b in pairs
        if counts_of(result_a, unit).errors != counts_of(result_b, unit).errors
    ]
    return sorted(rows, key=lambda row: -abs(row["change"]))


def _difference(prefix: str, difference: Difference | None) -> dict[str, Any]:
    return {
        f"{prefix}interval": list(difference.interval) if difference else None,
        f"{prefix}p_value": difference.p_value if difference else None,
    }


def _wins(changes: np.ndarray) -> dict[str, int]:
    """Count the units in which each evaluation has fewer errors; `changes` are the errors of b minus those of a."""
    return {"a": int((changes > 0).sum()), "b": int((changes < 0).sum()), "tie": int((changes == 0).sum())}


def _counted(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the count of each name, in the order of `asr.core.evaluation.bootstrap.by_cluster`."""
    unique, counts = np.unique(np.asarray(names, dtype=object), return_counts=True)
    return [(str(name), int(count)) for name, count in zip(unique, counts, strict=True)]


def _named(keys: Sequence[tuple[str, str]]) -> str:
    """Join the first SHOWN keys; add "and others" if there are more keys."""
    names = ", ".join(f"{shown(key)} of {shown(subset)}" for subset, key in keys[:SHOWN])
    return f"{names} and others" if len(keys) > SHOWN else names
