"""The page of an evaluation: rates, charts, and the scored utterances with recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asr.apps.report.conditions import conditions_section
from asr.apps.web import utterances
from asr.apps.web.chart import NAMED_ROWS, Axis, Column, Series, column_chart, histogram, interval_chart, line_chart
from asr.apps.web.figures import facts, figure, frequent
from asr.apps.web.page import escape, page, visible
from asr.base.text.numbers import counted, interval, percent
from asr.base.text.scripts import NO_WORDS
from asr.base.text.word_errors import align_words
from asr.core.evaluation.analysis import figures
from asr.core.evaluation.bootstrap import MIN_UNITS
from asr.core.evaluation.utterances import Scored

if TYPE_CHECKING:
    from asr.apps.report.robustness import Harder
    from asr.apps.web.clips import Clips

WER = Axis("word error rate", percent)
LETTERS = {"equal": "=", "substitution": "S", "insertion": "I", "deletion": "D"}
KINDS = {
    "substitutions": "with substitutions",
    "insertions": "with insertions",
    "deletions": "with deletions",
    "none": "without errors",
    "audio": "with a recording",
}
METHODS = (
    "Rates are errors summed over the utterances and divided by the length of their references. Words are aligned with "
    "the fewest edits (jiwer). The 95 % confidence intervals come from a bootstrap over utterances and, if all "
    "speakers are known, over whole speakers (Bisani and Ney 2004). There is no interval for fewer than five "
    "utterances or speakers. A test without errors has no interval either, because all its draws are equal. ECE, the "
    "expected calibration error, is the mean distance between confidence and share of right words, over bins with "
    "equal numbers of words. AUC is the probability that a right word has a higher confidence than a wrong word."
)


@dataclass(frozen=True, slots=True)
class About:
    """Description of a report.

    Args:
        title: title of the page.
        facts: facts as names and values, such as the model, the manifests, the normalisation of texts.
        not_scored: the reason for each utterance that could not be read.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    not_scored: Sequence[str] = ()


def evaluation_report(
    scored: Sequence[Scored], about: About, clips: Clips, harder: Mapping[str, Sequence[Harder]] = MappingProxyType({})
) -> str:
    """Return the page; all figures come from `analysis.figures`, which counts only the scored utterances.

    Args:
        scored: the utterances, in the order of the manifests.
        about: description of the report.
        clips: recordings of some utterances.
        harder: results of each manifest in noise and in rooms.
    """
    analysis = figures(scored)
    body = "".join(
        [
            f"<main><header><h1>{escape(about.title)}</h1>{headline(analysis)}{facts(about.facts)}",
            missing(about.not_scored),
            f"</header><section><h2>Where the errors are</h2>{_charts(analysis)}</section>",
            conditions_section(analysis["by"]["subset"], harder),
            f"<section><h2>Confused words</h2>{_confusions(analysis['confusions'])}</section>",
            utterances.section(KINDS, len(analysis["by"]["subset"]) > 1, bool(analysis["by"]["speaker"])),
            f'<p class="note">{escape(recordings(len(scored), clips))}</p>',
            f'<section><h2>How it is computed</h2><p class="note">{escape(METHODS)}</p></section></main>',
        ]
    )
    rows = [row(result, [result]) for result in scored]
    return page(
        about.title, body, utterances.SCRIPTS, {"report": handed_over(["hypothesis"], rows, clips)}, attached(clips)
    )


def headline(analysis: Mapping[str, Any]) -> str:
    """Return the rates, their intervals, and the size of the test."""
    words, characters, raw = analysis["words"], analysis["characters"], analysis["raw_words"]
    kinds = ", ".join(counted(words[f"{kind}s"], kind) for kind in ("substitution", "insertion", "deletion"))
    wrong = f"in {analysis['wrong_utterances']:,} of {counted(analysis['utterances'], 'utterance')}"
    speakers = f", {counted(analysis['speakers'], 'speaker')}" if analysis["speakers"] else ""
    size = f"{analysis['audio_seconds'] / 3600:.2f} hours{speakers}"
    of = f"of {counted(words['reference_length'], 'word')}"
    as_written = ""
    if raw["rate"] is not None:
        as_written = figure("raw_wer", "WER of texts as written", percent(raw["rate"], 2), intervals(raw))
    by_character = analysis["unspaced"]
    rates = [
        figure("wer", "Word error rate", percent(words["rate"], 2), intervals(words), main=not by_character),
        figure("cer", "Character error rate", percent(characters["rate"], 2), intervals(characters), main=by_character),
    ]
    return "".join(
        [
            f'<p class="note">{escape(NO_WORDS)}</p>' if by_character else "",
            '<div class="headline">',
            *(reversed(rates) if by_character else rates),
            as_written,
            figure("errors", "Word errors", f"{words['errors']:,}", [kinds, wrong, size], unit=of),
            "</div>",
        ]
    )


def intervals(counts: Mapping[str, Any]) -> list[str]:
    """Describe each interval, and name the units over which it was bootstrapped."""
    return [
        f"95 %: {interval(counts[key])} over {over}"
        for key, over in (("interval", "utterances"), ("speaker_interval", "speakers"))
        if counts[key]
    ]


def missing(not_scored: Sequence[str]) -> str:
    """List the utterances that could not be read."""
    if not not_scored:
        return ""
    lines = "".join(f"<li>{escape(reason)}</li>" for reason in not_scored)
    count = len(not_scored)
    summary = f"{counted(count, 'utterance')} could not be read, and {'is' if count == 1 else 'are'} not counted"
    return f'<details class="warning"><summary>{summary}</summary><ul>{lines}</ul></details>'


def breakdown(title: str, rows: Sequence[Mapping[str, Any]], name: str, note: str = "") -> str:
    """Draw a rate for each row of a breakdown."""
    columns = [
        Column(
            visible(group["name"]).replace(" words/s", ""),
            group["rate"],
            group["interval"],
            f"{counted(group['reference_length'], 'word')}, {counted(group['utterances'], 'utterance')}",
        )
        for group in rows
    ]
    return interval_chart(title, WER, columns, note, name)


def _charts(analysis: Mapping[str, Any]) -> str:
    by = analysis["by"]
    speakers = sorted(by["speaker"], key=lambda group: -1.0 if group["rate"] is None else -group["rate"])
    charts = [
        breakdown(
            "Short and long utterances",
            by["duration"],
            "duration",
            "WER by duration, with 95 % intervals over utterances",
        ),
        breakdown("Slow and fast speech", by["speaking_rate"], "rate", "WER by words a second"),
        breakdown("By subset", by["subset"], "subset", "WER of each manifest") if len(by["subset"]) > 1 else "",
        breakdown("By speaker, worst first", speakers, "speaker", _of_speakers(speakers)) if speakers else "",
        _error_types(analysis["words"]),
        _wer_distribution(analysis["distribution"]["wer"]),
        *_confidence(analysis),
    ]
    return f'<div class="charts">{"".join(charts)}</div>'


def _of_speakers(speakers: Sequence[Mapping[str, Any]]) -> str:
    """Describe which speakers have an interval, and where to find the names that do not fit into the chart."""
    number = sum(speaker["interval"] is not None for speaker in speakers)
    who = "each" if number == len(speakers) else f"the {number} of {len(speakers)} with {MIN_UNITS} utterances or more"
    note = f"WER of each speaker; 95 % intervals over utterances for {who}" if number else "WER of each speaker"
    return f"{note}. Names are under Values" if len(speakers) > NAMED_ROWS else note


def _error_types(words: Mapping[str, Any]) -> str:
    length = words["reference_length"]
    columns = [
        Column(kind, words[kind] / length if length else None, note=f"{words[kind]:,} of {length:,} words")
        for kind in ("substitutions", "insertions", "deletions")
    ]
    share = Axis("share of the reference's words", percent)
    return column_chart("Kinds of error", Axis("kind"), share, columns, "The three add up to the WER")


def _wer_distribution(bins: Sequence[Mapping[str, Any]]) -> str:
    columns = []
    for bucket in bins:
        name = "0" if bucket["to"] == 0 else ">100" if bucket["to"] is None else f"{100 * bucket['to']:.0f}"
        between = f"above {100 * bucket['from']:.0f} %"
        note = "no errors" if bucket["to"] == 0 else between if bucket["to"] is None else f"{between}, up to {name} %"
        columns.append(Column(name, bucket["utterances"], note=note))
    x, y = Axis("WER of the utterance, up to (%)"), Axis("utterances")
    return column_chart("How the errors are spread", x, y, columns, "Utterances by WER, in steps of 10 %")


def _confidence(analysis: Mapping[str, Any]) -> list[str]:
    calibration, bins = analysis["calibration"], analysis["distribution"]["confidence"]
    if calibration is None:
        return []
    points = [(bucket["confidence"], bucket["accuracy"]) for bucket in calibration["bins"]]
    area = "not defined" if calibration["auc"] is None else f"{calibration['auc']:.3f}"
    note = f"ECE {percent(calibration['ece'])}, AUC {area}. On the diagonal, confidence equals the share of right words"
    sure, right = Axis("confidence", percent, 0.0, 1.0), Axis("words that are right", percent, 0.0, 1.0)
    curve = line_chart(
        "Reliability of confidence", sure, right, [Series("words", points, dots=True)], note, diagonal=True
    )
    edges = [bucket["from"] for bucket in bins] + [bins[-1]["to"]]
    counts = [
        ("right words", [bucket["right"] for bucket in bins]),
        ("wrong words", [bucket["wrong"] for bucket in bins]),
    ]
    note = "Words of the hypotheses by their confidence"
    return [curve, histogram("Confidence of right and wrong words", sure, Axis("words"), edges, counts, note)]


def _confusions(confusions: Mapping[str, Any]) -> str:
    swapped = [
        [confusion["reference"], confusion["hypothesis"], f"{confusion['count']:,}"]
        for confusion in confusions["substitutions"]
    ]
    inserted, deleted = (
        [[confusion["word"], f"{confusion['count']:,}"] for confusion in confusions[kind]]
        for kind in ("insertions", "deletions")
    )
    return "".join(
        [
            '<div class="columns">',
            frequent("Substitutions", ["reference", "recognised as", "times"], swapped),
            frequent("Insertions", ["word", "times"], inserted),
            frequent("Deletions", ["word", "times"], deleted),
            "</div>",
        ]
    )


def recordings(count: int, clips: Clips, which: str = "with the most errors") -> str:
    """Describe how many utterances have recordings on the page, and which utterances were chosen first."""
    summary = f"This page has recordings of {len(clips.audio):,} of {count:,} utterances"
    if clips.audio:
        limit = f"{clips.size / 1e6:.1f} MB; --report-audio sets the limit"
        summary += f" ({limit}), beginning with the utterances {which}"
    return f"{summary}." + (f" {len(clips.problems):,} could not be read." if clips.problems else "")


def row(result: Scored, systems: Sequence[Scored]) -> dict[str, Any]:
    """Return an utterance for report.js: its texts, and each system's hypothesis."""
    return {
        "id": visible(result.utterance.id),
        "subset": visible(result.subset),
        "speaker": None if result.utterance.speaker is None else visible(result.utterance.speaker),
        "duration": result.utterance.duration,
        "text": visible(result.utterance.text),
        "reference": visible(" ".join(result.reference.split())),
        "systems": [_system(system) for system in systems],
    }


def _system(result: Scored) -> dict[str, Any]:
    words, confidence = result.transcript.words, result.transcript.confidence
    return {
        "hypothesis": visible(result.transcript.text),
        "edits": "".join(LETTERS[edit.kind] for edit in align_words(result.reference, result.transcript.text)),
        "times": [time for word in words for time in (word.start, word.end)],
        "confidence": None if confidence is None else round(confidence, 4),
    }


def handed_over(systems: Sequence[str], rows: Sequence[Mapping[str, Any]], clips: Clips) -> dict[str, Any]:
    """Return the data that report.js reads."""
    return {
        "systems": list(systems),
        "rows": rows,
        "clips": dict.fromkeys(clips.audio, 1),
        "problems": {row: visible(reason) for row, reason in clips.problems.items()},
        "no_audio": "This page has no recording of this utterance.",
        "features": clips.features,
        "posterior": {"tokens": clips.tokens, "frame_seconds": clips.frame_seconds, "top": clips.top},
        "segments": {
            row: {"starts": posterior.starts, "counts": posterior.counts} for row, posterior in clips.posteriors.items()
        },
    }


def attached(clips: Clips) -> dict[str, str]:
    """Return the attachments of the page: recordings, features and posteriors."""
    tops = {row: posterior.top for row, posterior in clips.posteriors.items()}
    return utterances.attachments({"clip": clips.audio, "log-mel": clips.log_mel, "posterior": tops})
