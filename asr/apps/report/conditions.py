"""Charts of a model's WER in noise and in rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asr.apps.web.chart import Axis, Column, Series, interval_chart, line_chart
from asr.apps.web.page import visible
from asr.base.text.numbers import percent

if TYPE_CHECKING:
    from asr.apps.report.robustness import Harder

SNR, WER = Axis("speech to noise, dB"), Axis("word error rate", percent)
NOTE = "With 95 % intervals over utterances; speech to noise is the ratio of mean squares over the whole utterance"


def conditions_section(clean: Sequence[Mapping[str, Any]], harder: Mapping[str, Sequence[Harder]]) -> str:
    """Draw the WER of each manifest in noise and in rooms; return "" if nothing was measured.

    Args:
        clean: rate and interval of each unchanged manifest, as rows of a breakdown.
        harder: results of each manifest in noise and in rooms.
    """
    rows = {row["name"]: row for row in clean}
    charts = [chart for name, results in harder.items() if name in rows for chart in _charts(rows[name], results)]
    return f'<section><h2>Noise and rooms</h2><div class="charts">{"".join(charts)}</div></section>' if charts else ""


def _charts(clean: Mapping[str, Any], results: Sequence[Harder]) -> list[str]:
    name = visible(clean["name"])
    measured = [(result.condition, result.evaluation.as_dict()) for result in results]
    noisy = sorted(
        (condition.snr_db, figures["wer"], figures["wer_interval"])
        for condition, figures in measured
        if condition.snr_db is not None
    )
    rooms = [(condition.name, figures) for condition, figures in measured if condition.snr_db is None]
    charts = []
    if noisy:
        points = [(snr_db, wer) for snr_db, wer, _ in noisy]
        ends = [(snr_db, clean["rate"]) for snr_db in (points[0][0], points[-1][0])]
        series = [Series("in noise", points, intervals=[pair for *_, pair in noisy], dots=True), Series("clean", ends)]
        charts.append(line_chart(f"{name} in noise", SNR, WER, series, NOTE))
    if rooms:
        columns = [Column("clean", clean["rate"], clean["interval"])]
        columns += [Column(room, figures["wer"], figures["wer_interval"]) for room, figures in rooms]
        charts.append(interval_chart(f"{name} in rooms", WER, columns, NOTE.partition(";")[0], "condition"))
    return charts
