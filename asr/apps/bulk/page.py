"""The page of a bulk job: hours transcribed, speed, confidence, failures, and texts that look wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.apps.web.chart import Axis, Column, bar_chart, histogram
from asr.apps.web.figures import facts, figure
from asr.apps.web.page import escape, page, visible
from asr.base.text.numbers import NONE, counted, duration, number, percent

TEXT_LISTS = (  # key of report.json, title, unit, and the function that formats a value
    ("longest", "The longest texts", "words", lambda value: number(value)),
    ("emptiest", "The emptiest texts", "words a second", lambda value: number(-value)),
    ("repetitive", "The most repetitive texts", "zlib compression ratio", lambda value: number(value)),
)
SHOWN_WORKERS = 40


def bulk_page(report: Mapping[str, Any]) -> str:
    """Return the page that shows the content of report.json."""
    workers = report["workers"]
    seconds = sum(worker["seconds"] for worker in workers.values())
    audio_seconds = sum(worker["audio_seconds"] for worker in workers.values())
    rate = audio_seconds / seconds if seconds else None
    failed = percent(report["num_failures"] / report["num_utterances"], 2) + " of all utterances"
    tiles = [
        figure(
            "hours", "Hours transcribed", f"{report['hours']:,.2f}", [counted(report["num_parts"], "part")], main=True
        ),
        figure("failures", "Failures", f"{report['num_failures']:,}", [failed]),
        figure("texts", "Texts", f"{report['num_texts']:,}", [f"{report['num_without_words']:,} without words"]),
        figure("words", "Words", f"{report['num_words']:,}", []),
        figure("rate", "Audio seconds a second, per worker", number(rate), [counted(len(workers), "worker")]),
    ]
    if report["settings"]["segments"]:
        torn = f"{report['num_torn_segments']:,} left out: no pause to cut at"
        tiles.append(figure("segments", "Segments", f"{report['num_segments']:,}", [torn]))
    title = "Bulk transcription"
    body = [
        f'<main><header><h1>{escape(title)}</h1><div class="headline">{"".join(tiles)}</div>',
        f"{facts(_facts(report, seconds))}</header>",
        f'<section><h2>Confidence and speed</h2><div class="charts">{"".join(_charts(report))}</div></section>',
        f"<section><h2>Texts to look at</h2>{''.join(_texts(report))}</section>",
        f"<section><h2>Failures</h2>{_failures(report)}</section></main>",
    ]
    return page(title, "\n".join(body))


def _facts(report: Mapping[str, Any], seconds: float) -> list[tuple[str, str]]:
    settings = ", ".join(f"{key}={value}" for key, value in report["settings"].items())
    worked = f"{duration(seconds)}, summed over all workers"
    return [("Input", report["input"]), ("Model", report["model"]), ("Time", worked), ("Settings", settings)]


def _charts(report: Mapping[str, Any]) -> list[str]:
    counts = report["confidence"]
    edges = [index / len(counts) for index in range(len(counts) + 1)]
    title = "Confidence of the texts that have words"
    charts = [histogram(title, Axis("mean confidence of the words"), Axis("texts"), edges, [("texts", counts)])]
    workers = sorted(report["workers"].items(), key=lambda item: item[1]["audio_seconds_per_second"])[:SHOWN_WORKERS]
    note = f"The slowest {len(workers)} of {len(report['workers']):,}" if len(workers) < len(report["workers"]) else ""
    rates = [Column(visible(name), worker["audio_seconds_per_second"]) for name, worker in workers]
    waits = [
        Column(visible(name), worker["waiting_seconds"] / worker["seconds"] if worker["seconds"] else 0.0)
        for name, worker in workers
    ]
    charts.append(bar_chart("Audio seconds a second", Axis("audio seconds a second", low=0), rates, note, "worker"))
    share = Axis("share of the time", percent, low=0, high=1)
    charts.append(bar_chart("Waiting for audio to be read and decoded", share, waits, note, "worker"))
    return charts


def _texts(report: Mapping[str, Any]) -> list[str]:
    tables = []
    for key, title, unit, write in TEXT_LISTS:
        rows = [
            (entry["id"], f"{entry['seconds']:.1f} s", entry["text"] or NONE, write(entry["value"]))
            for entry in report[key]
        ]
        tables.append(_table(title, ("id", "audio", "text", unit), rows))
    return tables


def _failures(report: Mapping[str, Any]) -> str:
    rows = [(failure["id"], failure["reason"]) for failure in report["failures"]]
    if not rows:
        return "<p>None.</p>"
    more = report["num_failures"] - len(rows)
    note = f'<p class="note">and {more:,} more, in failures.jsonl</p>' if more else ""
    return _table("", ("id", "reason"), rows) + note


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    lines = "".join(f"<tr>{''.join(f'<td><bdi>{escape(cell)}</bdi></td>' for cell in row)}</tr>" for row in rows)
    return (
        f"{f'<h3>{escape(title)}</h3>' if title else ''}"
        f'<div class="table-scroll cases" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )
