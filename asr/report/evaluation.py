"""The report of an evaluation: one page that a person reads, of the scored utterances and their recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asr.evaluation.analysis import figures
from asr.evaluation.utterances import Scored
from asr.evaluation.word_errors import align_words
from asr.text.numbers import counted, interval, percent
from asr.web import utterances
from asr.web.chart import Axis, Column, Series, column_chart, histogram, interval_chart, line_chart
from asr.web.figures import facts, figure, frequent
from asr.web.page import escape, page, visible

if TYPE_CHECKING:
    from asr.report.clips import Clips

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
    "Rates are errors summed over the utterances and divided by the length of their references. Words are aligned by "
    "the fewest edits (jiwer). Intervals are of 95 % confidence, by bootstrap: over utterances and, where all speakers "
    "are known, over speakers, drawn whole (Bisani and Ney 2004); there is none for fewer than five, nor without any "
    "error, which says nothing about how many there might have been. ECE, the expected calibration error, is the mean "
    "distance of confidence and share of right words over bins of equally many words; AUC is the probability that a "
    "right word is surer than a wrong one."
)


@dataclass(frozen=True, slots=True)
class About:
    """What a report is of.

    Args:
        title: of the page.
        facts: labels and what they say: the model, the manifests, how texts are normalised.
        not_scored: why each utterance that could not be read is missing.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    not_scored: Sequence[str] = ()


def evaluation_report(scored: Sequence[Scored], about: About, clips: Clips) -> str:
    """Make the page: all figures are those of `analysis.figures`, and so of the scored utterances alone."""
    found = figures(scored)
    body = "".join(
        [
            f"<main><header><h1>{escape(about.title)}</h1>{headline(found)}{facts(about.facts)}",
            missing(about.not_scored),
            f"</header><section><h2>Where the errors are</h2>{_charts(found)}</section>",
            f"<section><h2>What is confused</h2>{_confusions(found['confusions'])}</section>",
            utterances.section(KINDS, len(found["by"]["subset"]) > 1, bool(found["by"]["speaker"])),
            f'<p class="note">{escape(recordings(len(scored), clips))}</p>',
            f'<section><h2>How it is computed</h2><p class="note">{escape(METHODS)}</p></section></main>',
        ]
    )
    rows = [row(one, [one]) for one in scored]
    return page(
        about.title, body, utterances.SCRIPTS, {"report": handed_over(["hypothesis"], rows, clips)}, attached(clips)
    )


def headline(found: Mapping[str, Any]) -> str:
    """The rates with their intervals, and of how much they are."""
    words, characters, raw = found["words"], found["characters"], found["raw_words"]
    kinds = ", ".join(counted(words[f"{kind}s"], kind) for kind in ("substitution", "insertion", "deletion"))
    wrong = f"in {found['wrong_utterances']:,} of {counted(found['utterances'], 'utterance')}"
    speakers = f", {counted(found['speakers'], 'speaker')}" if found["speakers"] else ""
    size = f"{found['audio_seconds'] / 3600:.2f} hours{speakers}"
    of = f"of {counted(words['reference_length'], 'word')}"
    return "".join(
        [
            '<div class="headline">',
            figure("wer", "Word error rate", percent(words["rate"], 2), intervals(words), main=True),
            figure("cer", "Character error rate", percent(characters["rate"], 2), intervals(characters)),
            figure("raw_wer", "WER of texts as written", percent(raw["rate"], 2), intervals(raw)),
            figure("errors", "Word errors", f"{words['errors']:,}", [kinds, wrong, size], unit=of),
            "</div>",
        ]
    )


def intervals(counts: Mapping[str, Any]) -> list[str]:
    """Write the intervals there are, and what they are over."""
    return [
        f"95 %: {interval(counts[key])} over {over}"
        for key, over in (("interval", "utterances"), ("speaker_interval", "speakers"))
        if counts[key]
    ]


def missing(not_scored: Sequence[str]) -> str:
    """Name the utterances that could not be read."""
    if not not_scored:
        return ""
    lines = "".join(f"<li>{escape(one)}</li>" for one in not_scored)
    count = len(not_scored)
    said = f"{counted(count, 'utterance')} could not be read, and count{'s' if count == 1 else ''} nowhere"
    return f'<details class="warning"><summary>{said}</summary><ul>{lines}</ul></details>'


def breakdown(title: str, rows: Sequence[Mapping[str, Any]], name: str, note: str = "") -> str:
    """Draw a rate for each row of a breakdown."""
    columns = [
        Column(
            visible(one["name"]).replace(" words/s", ""),
            one["rate"],
            one["interval"],
            f"{counted(one['reference_length'], 'word')}, {counted(one['utterances'], 'utterance')}",
        )
        for one in rows
    ]
    return interval_chart(title, WER, columns, note, name)


def _charts(found: Mapping[str, Any]) -> str:
    by = found["by"]
    speakers = sorted(by["speaker"], key=lambda one: -1.0 if one["rate"] is None else -one["rate"])
    charts = [
        breakdown(
            "Short and long utterances",
            by["duration"],
            "duration",
            "WER by duration, with 95 % intervals over utterances",
        ),
        breakdown("Slow and fast speech", by["speaking_rate"], "rate", "WER by words a second"),
        breakdown("By subset", by["subset"], "subset", "WER of each manifest") if len(by["subset"]) > 1 else "",
        breakdown("By speaker, the worst first", speakers, "speaker", "WER of each speaker") if speakers else "",
        _error_types(found["words"]),
        _wer_distribution(found["distribution"]["wer"]),
        *_confidence(found),
    ]
    return f'<div class="charts">{"".join(charts)}</div>'


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
    for one in bins:
        name = "0" if one["to"] == 0 else ">100" if one["to"] is None else f"{100 * one['to']:.0f}"
        between = f"above {100 * one['from']:.0f} %"
        told = "no errors" if one["to"] == 0 else between if one["to"] is None else f"{between}, up to {name} %"
        columns.append(Column(name, one["utterances"], note=told))
    x, y = Axis("WER of the utterance, up to (%)"), Axis("utterances")
    return column_chart("How the errors are spread", x, y, columns, "Utterances by their own WER, in steps of 10 %")


def _confidence(found: Mapping[str, Any]) -> list[str]:
    calibration, bins = found["calibration"], found["distribution"]["confidence"]
    if calibration is None:
        return []
    points = [(one["confidence"], one["accuracy"]) for one in calibration["bins"]]
    area = "not defined" if calibration["auc"] is None else f"{calibration['auc']:.3f}"
    note = f"ECE {percent(calibration['ece'])}, AUC {area}. On the diagonal, confidence is the share of right words"
    sure, right = Axis("confidence", percent, 0.0, 1.0), Axis("words that are right", percent, 0.0, 1.0)
    curve = line_chart(
        "Whether confidence can be believed", sure, right, [Series("words", points, dots=True)], note, True
    )
    edges = [one["from"] for one in bins] + [bins[-1]["to"]]
    counts = [("right words", [one["right"] for one in bins]), ("wrong words", [one["wrong"] for one in bins])]
    note = "Words of the hypotheses by their confidence"
    return [curve, histogram("Whether confidence tells right from wrong", sure, Axis("words"), edges, counts, note)]


def _confusions(found: Mapping[str, Any]) -> str:
    swapped = [[one["reference"], one["hypothesis"], f"{one['count']:,}"] for one in found["substitutions"]]
    inserted, deleted = (
        [[one["word"], f"{one['count']:,}"] for one in found[kind]] for kind in ("insertions", "deletions")
    )
    return "".join(
        [
            '<div class="columns">',
            frequent("Substitutions", ["reference", "heard as", "times"], swapped),
            frequent("Insertions", ["word", "times"], inserted),
            frequent("Deletions", ["word", "times"], deleted),
            "</div>",
        ]
    )


def recordings(count: int, clips: Clips, which: str = "with the most errors") -> str:
    """Say how many utterances can be listened to, and which were wanted first."""
    said = f"There are recordings of {len(clips.audio):,} of {count:,} utterances in this page"
    said += f", those {which} first ({clips.size / 1e6:.1f} MB; --report-audio sets the limit)." if clips.audio else "."
    return said + (f" {len(clips.problems):,} could not be read." if clips.problems else "")


def row(one: Scored, systems: Sequence[Scored]) -> dict[str, Any]:
    """What report.js is told of an utterance, and of what each system made of it."""
    return {
        "id": visible(one.utterance.id),
        "subset": visible(one.subset),
        "speaker": None if one.utterance.speaker is None else visible(one.utterance.speaker),
        "duration": one.utterance.duration,
        "text": visible(one.utterance.text),
        "reference": visible(" ".join(one.reference.split())),
        "systems": [_system(system) for system in systems],
    }


def _system(one: Scored) -> dict[str, Any]:
    words, confidence = one.transcript.words, one.transcript.confidence
    return {
        "hypothesis": visible(one.transcript.text),
        "edits": "".join(LETTERS[edit.kind] for edit in align_words(one.reference, one.transcript.text)),
        "times": [time for word in words for time in (word.start, word.end)],
        "confidence": None if confidence is None else round(confidence, 4),
    }


def handed_over(systems: Sequence[str], rows: Sequence[Mapping[str, Any]], clips: Clips) -> dict[str, Any]:
    """Everything that report.js reads; see there."""
    return {
        "systems": list(systems),
        "rows": rows,
        "clips": dict.fromkeys(clips.audio, 1),
        "problems": {row: visible(reason) for row, reason in clips.problems.items()},
        "no_audio": "There is no recording of this utterance in the page.",
        "features": clips.features,
        "posterior": {"tokens": clips.tokens, "frame_seconds": clips.frame_seconds, "top": clips.top},
        "segments": {row: {"starts": one.starts, "counts": one.counts} for row, one in clips.posteriors.items()},
    }


def attached(clips: Clips) -> dict[str, str]:
    """The recordings, and what the net heard in them."""
    tops = {row: posterior.top for row, posterior in clips.posteriors.items()}
    return utterances.attachments({"clip": clips.audio, "log-mel": clips.log_mel, "posterior": tops})
