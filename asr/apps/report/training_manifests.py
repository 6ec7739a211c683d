"""Metrics of a training run by manifest: hours, losses, WER."""

from collections.abc import Mapping

from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.curves import Curve
from asr.apps.web.page import escape
from asr.base.text.numbers import NONE, number, percent
from asr.core.run.names import HOURS_OF, LOSS_OF, VALID_LOSS_OF, VALID_WER_OF

MAX_LINES = 6  # maximum number of lines of a chart, so that colours differ; the table has all manifests
SMOOTH = 40  # a line of a training loss is a moving mean over 1 / SMOOTH of its points
NOTE = (
    "Hours: audio trained on, at speed 1.0. Losses are per token; a training loss is the mean over the steps since the "
    "previous line of metrics.csv, without steps before the last resume. All values are the last logged values."
)

Curves = Mapping[str, Curve]


def manifests_section(curves: Curves) -> str:
    """Return the section; return "" if each split has one manifest."""
    names = _names(curves)
    if not names:
        return ""
    return (
        f'<section><h2>By manifest</h2><p class="note">{escape(NOTE)}</p>{_table(names, curves)}'
        f'<div class="charts">{"".join(_charts(curves))}</div></section>'
    )


def _names(curves: Curves) -> list[str]:
    """List the manifests with logged metrics, training manifests first."""
    beginnings = (HOURS_OF, LOSS_OF, VALID_LOSS_OF, VALID_WER_OF)
    names = [
        column.removeprefix(beginning)
        for beginning in beginnings
        for column, curve in curves.items()
        if column.startswith(beginning) and len(curve)
    ]
    return list(dict.fromkeys(names))


def _table(names: list[str], curves: Curves) -> str:
    heads = ("manifest", "hours trained on", "training loss", "validation loss", "validation WER", "best")
    rows = []
    for name in names:
        hours, loss, valid_loss, wer = (
            curves.get(f"{beginning}{name}", Curve([], []))
            for beginning in (HOURS_OF, LOSS_OF, VALID_LOSS_OF, VALID_WER_OF)
        )
        cells = [f"{hours.values[-1]:,.2f}" if len(hours) else NONE]
        cells += [number(float(f"{curve.values[-1]:.3g}")) if len(curve) else NONE for curve in (loss, valid_loss)]
        cells += [percent(wer.values[-1], 2), percent(min(wer.values), 2)] if len(wer) else [NONE, NONE]
        numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        rows.append(f"<tr><td><bdi>{escape(name)}</bdi></td>{numbers}</tr>")
    first, *others = (f'<th scope="col">{escape(head)}</th>' for head in heads)
    titles = first + "".join(head.replace("<th", '<th class="number"') for head in others)
    body = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="table-scroll" tabindex="0">{body}</div>'


def _charts(curves: Curves) -> list[str]:
    last = max(curve.steps[-1] for curve in curves.values() if len(curve))
    steps = Axis("optimizer step", low=0, high=max(1, last))
    kinds = (
        (LOSS_OF, "Training loss of each manifest", Axis("loss per token"), SMOOTH),
        (VALID_WER_OF, "Validation WER of each manifest", Axis("word error rate", percent), 0),
    )
    drawn = []
    for beginning, title, axis, smooth in kinds:
        of_kind = {name: curve for name, curve in curves.items() if name.startswith(beginning) and len(curve)}
        series = [_series(name.removeprefix(beginning), curve, smooth) for name, curve in of_kind.items()]
        more = len(series) - MAX_LINES
        note = f"the first {MAX_LINES} manifests; the table above has {more} more" if more > 0 else ""
        if series:
            drawn.append(line_chart(title, steps, axis, series[:MAX_LINES], note))
    return drawn


def _series(name: str, curve: Curve, smooth: int) -> Series:
    width = len(curve) // smooth // 2 * 2 + 1 if smooth else 1
    thin = curve.smoothed(width).thinned(80)
    return Series(name, list(zip(thin.steps, thin.values, strict=True)), dots=len(thin) <= SMOOTH)
