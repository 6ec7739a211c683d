"""The page of a comparison of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asr.apps.report.evaluation import About, attached, handed_over, intervals, recordings, row
from asr.apps.web import utterances
from asr.apps.web.chart import Axis, Column, Dot, column_chart, interval_chart, scatter_chart
from asr.apps.web.figures import facts, figure
from asr.apps.web.page import escape, page, visible
from asr.base.text.numbers import counted, interval, percent, points, probability
from asr.base.text.scripts import NO_WORDS
from asr.core.evaluation.analysis import breakdown
from asr.core.evaluation.comparison import counts_of, match, rate_name, verdict
from asr.core.evaluation.utterances import Scored

if TYPE_CHECKING:
    from asr.apps.web.clips import Clips

NAMES = ("A", "B")
KINDS = {
    "better": "B better",
    "worse": "A better",
    "same": "same number of errors",
    "substitutions": "with substitutions",
    "insertions": "with insertions",
    "deletions": "with deletions",
    "none": "both without errors",
    "audio": "with a recording",
}
METHODS = (
    "Both models recognised the same utterances, and their hypotheses are compared with the same references. The "
    "difference is the error rate of B minus that of A: if it is negative, B is better. Its 95 % confidence interval "
    "and its two-sided p-value come from a paired bootstrap, which draws utterances or, where speakers are known, "
    "whole speakers (Bisani and Ney 2004). A small p-value means that a difference this large would be rare if the "
    "models were equally good. Errors are counted in words, or in characters if the references are in a script "
    "without spaces. Words are aligned with the fewest edits (jiwer)."
)


def comparison_report(
    a: Sequence[Scored], b: Sequence[Scored], comparison: Mapping[str, Any], about: About, clips: Clips
) -> str:
    """Return the page that compares two models.

    Args:
        a: utterances scored with the first model.
        b: utterances scored with the second model, in any order.
        comparison: result of `asr.core.evaluation.comparison.compare`.
        about: title and facts.
        clips: recordings, by position in `a`.
    """
    pairs = match(a, b)
    rows = [row(result_a, [result_a, result_b]) for result_a, result_b in pairs]
    subsets, speakers = {result.subset for result in a}, {result.utterance.speaker for result in a} - {None}
    body = "".join(
        [
            f"<main><header><h1>{escape(about.title)}</h1>"
            f'<p class="verdict">{escape(verdict(comparison))}</p>'
            f"{note(comparison)}{headline(comparison)}{facts(about.facts)}</header>",
            f"<section><h2>Where they differ</h2>{_charts(pairs, comparison)}</section>",
            utterances.section(KINDS, len(subsets) > 1, bool(speakers)),
            f'<p class="note">{escape(recordings(len(a), clips, "that changed most"))}</p>',
            f'<section><h2>How it is computed</h2><p class="note">{escape(METHODS)}</p></section></main>',
        ]
    )
    return page(about.title, body, utterances.SCRIPTS, {"report": handed_over(NAMES, rows, clips)}, attached(clips))


def note(comparison: Mapping[str, Any]) -> str:
    """Return a paragraph if characters are compared instead of words."""
    return f'<p class="note">{escape(NO_WORDS)}</p>' if comparison["unit"] == "character" else ""


def headline(comparison: Mapping[str, Any]) -> str:
    """Return the error rates of both models, and the difference with its interval and p-value."""
    difference = comparison["difference"]
    uncertainty = [*chance(difference, "", "utterances"), *chance(difference, "speaker_", "speakers")]
    wins = [
        f"{noun}s: {tally['a']:,} better in A, {tally['b']:,} in B, {tally['tie']:,} equal"
        for noun, tally in (("utterance", comparison["utterance_wins"]), ("speaker", comparison["speaker_wins"]))
        if tally
    ]
    length, name = comparison["a"]["reference_length"], rate_name(comparison)
    size = f"{counted(length, comparison['unit'])}, {counted(comparison['utterances'], 'utterance')}"
    parts = [
        figure(
            "difference",
            f"Difference in {name}, B minus A",
            points(difference["rate"]),
            uncertainty,
            main=True,
            unit="points",
        )
    ]
    for which in ("a", "b"):
        words = comparison[which]
        label = f"{name} of {which.upper()}"
        parts.append(figure(f"wer_{which}", label, percent(words["rate"], 2), intervals(words)))
    more = comparison["b"]["errors"] - comparison["a"]["errors"]
    parts.append(figure("errors", "Errors of B minus those of A", f"{more:+,}", [size, *wins]))
    return f'<div class="headline">{"".join(parts)}</div>'


def chance(difference: Mapping[str, Any], prefix: str, over: str) -> list[str]:
    """Describe the interval and the p-value of the difference; return [] if there is no interval."""
    ends, p_value = difference[f"{prefix}interval"], difference[f"{prefix}p_value"]
    return [f"{interval(ends, points)}, p {probability(p_value, '= ')}, over {over}"] if ends else []


def _charts(pairs: Sequence[tuple[Scored, Scored]], comparison: Mapping[str, Any]) -> str:
    systems = [result_a for result_a, _ in pairs], [result_b for _, result_b in pairs]
    by_subset = breakdown(systems, "subset") if len({result_a.subset for result_a, _ in pairs}) > 1 else None
    charts = [
        _kinds(comparison),
        _beside("Short and long utterances", "duration", *breakdown(systems, "duration")),
        _beside("Slow and fast speech", "words a second", *breakdown(systems, "speaking_rate")),
        _beside("By subset", "subset", *by_subset) if by_subset else "",
        _changes(pairs, comparison["unit"]),
        _speakers(comparison) if comparison["speakers"] else "",
    ]
    return f'<div class="charts">{"".join(charts)}</div>'


def _kinds(comparison: Mapping[str, Any]) -> str:
    columns = [
        Column(f"{kind[:3]}. {name}", comparison[which][kind], note=f"{kind} of {name}", style=style)
        for kind in ("substitutions", "insertions", "deletions")
        for name, which, style in zip(NAMES, ("a", "b"), (1, 2), strict=True)
    ]
    units = Axis(f"{comparison['unit']}s")
    return column_chart("Kinds of error", Axis("substitutions, insertions, deletions"), units, columns)


def _beside(title: str, name: str, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> str:
    """Draw the rates of both models in pairs of rows; both models have the same utterances, and so the same bins."""
    columns = []
    for group_a, group_b in zip(a, b, strict=True):
        for which, group, style in zip(NAMES, (group_a, group_b), (1, 2), strict=True):
            note = f"{counted(group['reference_length'], 'word')}, {counted(group['utterances'], 'utterance')}"
            label = visible(group["name"]).replace(" words/s", "")
            columns.append(Column(f"{label}, {which}", group["rate"], group["interval"], note, style))
    return interval_chart(title, Axis("word error rate", percent), columns, f"WER by {name}, A above B", name)


def _changes(pairs: Sequence[tuple[Scored, Scored]], unit: str) -> str:
    changes = [counts_of(result_b, unit).errors - counts_of(result_a, unit).errors for result_a, result_b in pairs]
    columns = [Column("<-4", sum(change < -4 for change in changes), note="B has at least 5 fewer errors")]
    for change in range(-4, 5):
        columns.append(Column(f"{change:+d}" if change else "0", changes.count(change), note="errors of B minus A"))
    columns.append(Column(">4", sum(change > 4 for change in changes), note="B has at least 5 more errors"))
    x, y = Axis("errors of B minus those of A"), Axis("utterances")
    return column_chart("Change in errors per utterance", x, y, columns, "Left of 0, B is better")


def _speakers(comparison: Mapping[str, Any]) -> str:
    dots, name = [], rate_name(comparison)
    for speaker in comparison["speakers"]:
        length = speaker["reference_length"]
        a, b = (speaker[key] / length if length else None for key in ("a_errors", "b_errors"))
        note = f"{speaker['a_errors']:,} and {speaker['b_errors']:,} errors of {counted(length, comparison['unit'])}"
        dots.append(Dot(visible(speaker["name"]), a, b, note))
    x, y = Axis(f"{name} of A", percent), Axis(f"{name} of B", percent)
    return scatter_chart("Speaker by speaker", x, y, dots, "Below the line, B is better", diagonal=True)
