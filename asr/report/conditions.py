"""How a model stands noise and rooms, as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asr.text.numbers import percent
from asr.web.chart import Axis, Column, Series, interval_chart, line_chart
from asr.web.page import visible

if TYPE_CHECKING:
    from asr.evaluation.conditions import Harder

SNR, WER = Axis("speech to noise, dB"), Axis("word error rate", percent)
NOTE = "With 95 % intervals over utterances; the ratio is of mean squares over the whole utterance"


def conditions_section(clean: Sequence[Mapping[str, Any]], harder: Mapping[str, Sequence[Harder]]) -> str:
    """Draw the WER of each manifest over the ratio of speech to noise, and in rooms; nothing where none was measured.

    Args:
        clean: the rate of each manifest as it is, with its interval, as rows of a breakdown.
        harder: what was measured of each.
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
