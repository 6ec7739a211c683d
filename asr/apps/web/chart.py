"""Draw charts as inline SVG with a table of the values below; style.css has colours and fonts, no script is needed.

    line_chart("Loss falls until step 900", Axis("step"), Axis("loss"), [Series("train", [(0, 7.1), (10, 5.2)])])
    column_chart("WER by duration", Axis("seconds"), Axis("WER", percent), [Column("0-2", 0.12, (0.1, 0.15))])
    interval_chart("WER by speaker", Axis("WER", percent), columns)             horizontal, for many names
    bar_chart("WER by decoder", Axis("WER", percent), columns)                  horizontal, for long names
    histogram("WER of utterances", Axis("WER", percent), Axis("utterances"), edges, [("all", counts)])
    scatter_chart("Each speaker", Axis("WER of A", percent), Axis("WER of B", percent), [Dot("anna", 0.1, 0.2)])

Each function returns a `<figure class="chart">`, for a `<div class="charts">`. A title states what the chart shows.
Values that are None or not finite are left out of the drawing, and are "-" in the table.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from asr.apps.web.page import escape
from asr.apps.web.plane import (
    BOTTOM,
    CHARACTER,
    HEIGHT,
    MAX_POINTS,
    TOP,
    WIDTH,
    Plane,
    circle,
    label,
    line_style,
    rect,
    shorten,
)
from asr.apps.web.scale import Axis
from asr.base.text.numbers import NONE

__all__ = [
    "Axis",
    "Column",
    "Dot",
    "Series",
    "bar_chart",
    "column_chart",
    "histogram",
    "interval_chart",
    "line_chart",
    "scatter_chart",
]

NAMED_ROWS = 40  # if a chart has more rows, its rows are thin and have no names
TABLE_ROWS = 60  # maximum number of rows of a line chart's table


@dataclass(frozen=True)
class Series:
    """Points (x, y) joined by a line.

    Args:
        name: name in the legend and the table.
        points: points in the order of x; a y of None is a gap.
        raw: unsmoothed points, drawn faintly behind the line in the same colour.
        intervals: (low, high) of each point, drawn as a band.
        dots: whether to mark each point.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    raw: Sequence[tuple[float, float | None]] = ()
    intervals: Sequence[tuple[float, float] | None] = ()
    dots: bool = False


@dataclass(frozen=True)
class Column:
    """A value under a name.

    Args:
        name: name at the axis.
        value: value of the bar or dot.
        interval: 95 % confidence interval; None: not known.
        note: text shown on hover, and in the table.
        style: number of the colour; values of different colours must also have different names.
    """

    name: str
    value: float | None
    interval: Sequence[float] | None = None
    note: str = ""
    style: int = 1


@dataclass(frozen=True)
class Dot:
    """A mark of a scatter chart; `note` is shown on hover."""

    name: str
    x: float | None
    y: float | None
    note: str = ""


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], note: str = "", diagonal: bool = False, zero: bool = True
) -> str:
    """Draw lines over a numeric axis.

    Args:
        title: what the chart shows.
        x: horizontal axis.
        y: vertical axis.
        series: the lines; the first six have different colours.
        note: further information, in small print.
        diagonal: whether to draw the line y = x, too.
        zero: whether y begins at 0, so that heights can be compared.
    """
    points = [point for curve in series for point in [*curve.points, *curve.raw]]
    heights = [value for _, value in points] + [
        edge for curve in series for pair in curve.intervals if pair for edge in pair
    ]
    plane = Plane(x, y, [at for at, _ in points], heights, y_zero=zero)
    drawn = [*plane.y_ticks(), *plane.x_ticks(), *plane.names()]
    drawn += [plane.diagonal()] if diagonal else []
    behind = [plane.path(curve.raw, f"faint s{index % 6 + 1}") for index, curve in enumerate(series) if curve.raw]
    front = [mark for index, curve in enumerate(series, start=1) for mark in _line(plane, curve, index)]
    legend = [(curve.name, index) for index, curve in enumerate(series, start=1)] if len(series) > 1 else []
    return _figure(title, note, drawn + behind + front, _line_rows(x, y, series), legend)


def column_chart(title: str, x: Axis, y: Axis, columns: Sequence[Column], note: str = "") -> str:
    """Draw a vertical bar for each name, with whiskers for intervals; suits few names."""
    plane = Plane(x, y, [], [edge for column in columns for edge in (column.value, *(column.interval or ()))])
    room = (plane.right - plane.left) / max(len(columns), 1)
    width = min(room * 0.66, 46.0)
    drawn = [*plane.y_ticks(), *plane.names()]
    for index, column in enumerate(columns):
        centre = plane.left + (index + 0.5) * room
        drawn.append(label(centre, plane.bottom + 17, shorten(column.name, room), "middle"))
        if column.value is None or not math.isfinite(column.value):
            drawn.append(label(centre, plane.bottom - 6, NONE, "middle"))
            continue
        drawn.append(plane.column(centre, width, column.value, f"s{column.style}") if column.value else "")
        if column.interval:
            drawn.append(plane.whisker(centre, column.interval[0], column.interval[1]))
        drawn.append(rect("hit", centre - room / 2, plane.top, room, plane.bottom - plane.top, _hover(y, column)))
    return _figure(title, note, drawn, _column_rows(x.label, y, columns))


def histogram(
    title: str, x: Axis, y: Axis, edges: Sequence[float], series: Sequence[tuple[str, Sequence[int]]], note: str = ""
) -> str:
    """Draw a bar for the count between consecutive edges; several series are stacked, the first at the bottom."""
    bins = range(len(edges) - 1)
    plane = Plane(
        Axis(x.label, x.write, edges[0], edges[-1]),
        y,
        edges,
        [sum(counts[at] for _, counts in series) for at in bins],
    )
    drawn = [*plane.y_ticks(), *plane.x_ticks(), *plane.names()]
    for at in bins:
        left, right, floor = plane.x(edges[at]), plane.x(edges[at + 1]), 0
        for style, (_, counts) in enumerate(series, start=1):
            top, under = plane.y(floor + counts[at]), plane.y(floor)
            drawn.append(rect(f"bar s{style}", left, top, right - left, under - top) if counts[at] else "")
            floor += counts[at]
        hover = [f"{x.label}: {x.write(edges[at])} to {x.write(edges[at + 1])}"]
        hover += [f"{name}: {counts[at]:,}" for name, counts in series]
        drawn.append(rect("hit", left, plane.top, right - left, plane.bottom - plane.top, "\n".join(hover)))
    rows = [["from", "to", *(name for name, _ in series)]]
    rows += [[x.write(edges[at]), x.write(edges[at + 1]), *(f"{counts[at]:,}" for _, counts in series)] for at in bins]
    legend = [(name, style) for style, (name, _) in enumerate(series, start=1)] if len(series) > 1 else []
    return _figure(title, note, drawn, rows, legend, blocks=True)


def interval_chart(title: str, x: Axis, rows: Sequence[Column], note: str = "", name: str = "name") -> str:
    """Draw a row for each name, in the given order: a dot for its value, a line for its interval.

    Args:
        title: what the chart shows.
        x: axis of the values.
        rows: rows from top to bottom; if there are more than NAMED_ROWS, they are thin and have names only on hover and
            in the table.
        note: further information, in small print.
        name: heading of the names in the table.
    """

    def mark(plane: Plane, row: Column, value: float, middle: float, step: float) -> Iterator[str]:
        if row.interval:
            ends = f"M{plane.x(row.interval[0]):.1f} {middle:.1f}H{plane.x(row.interval[1]):.1f}"
            thin = " thin" if len(rows) > NAMED_ROWS else ""
            yield f'<path class="whisker{thin}" d="{ends}"/>'
        yield circle(f"mark s{row.style}", plane.x(value), middle, min(4.0, max(1.5, step / 2.6)))

    return _lying(title, x, rows, note, name, 120.0, mark)


def bar_chart(title: str, x: Axis, rows: Sequence[Column], note: str = "", name: str = "name") -> str:
    """Draw a horizontal bar for each name, in the given order. Parameters are those of `interval_chart`."""

    def mark(plane: Plane, row: Column, value: float, middle: float, step: float) -> Iterator[str]:
        if value:
            ends = sorted([plane.x(0.0), plane.x(value)])
            yield rect(f"bar s{row.style}", ends[0], middle - step / 3, ends[1] - ends[0], step / 1.5)

    return _lying(title, x, rows, note, name, WIDTH / 2, mark)


def _lying(
    title: str,
    x: Axis,
    rows: Sequence[Column],
    note: str,
    name: str,
    room: float,
    mark: Callable[[Plane, Column, float, float, float], Iterable[str]],
) -> str:
    """Draw a row for each name.

    Names are shortened to `room` units. `mark` draws a value, given the middle and height of the row.
    """
    step = 17.0 if len(rows) <= NAMED_ROWS else max(2.0, min(8.0, 300.0 / len(rows)))
    step = min(24.0, max(step, 160.0 / max(len(rows), 1)))  # if there are few rows, they are taller
    names = [shorten(row.name, room) if len(rows) <= NAMED_ROWS else "" for row in rows]
    left = 14.0 + max([len(text) * CHARACTER for text in names], default=0.0)
    height = TOP + step * max(len(rows), 1) + BOTTOM
    values = [edge for row in rows for edge in (row.value, *(row.interval or ()))]
    plane = Plane(x, Axis(""), values, [], x_zero=True, left=left, height=height)
    drawn = [*plane.x_ticks(grid=True), *plane.names()]
    for index, row in enumerate(rows):
        middle = TOP + (index + 0.5) * step
        drawn.append(label(left - 8, middle + 4, names[index], "end") if names[index] else "")
        if row.value is None or not math.isfinite(row.value):
            continue
        drawn += mark(plane, row, row.value, middle, step)
        drawn.append(rect("hit", 0, middle - step / 2, plane.right, step, _hover(x, row)))
    return _figure(title, note, drawn, _column_rows(name, x, rows), height=height)


def scatter_chart(title: str, x: Axis, y: Axis, dots: Sequence[Dot], note: str = "", diagonal: bool = False) -> str:
    """Draw a dot for each name; with a diagonal, both axes have equal bounds, so x is equal to y on the diagonal."""
    across, up = [dot.x for dot in dots], [dot.y for dot in dots]
    if diagonal:
        across = up = across + up
    plane = Plane(x, y, across, up, x_zero=diagonal)
    drawn = [*plane.y_ticks(), *plane.x_ticks(), *plane.names()]
    drawn += [plane.diagonal()] if diagonal else []
    for dot in dots:
        if dot.x is not None and dot.y is not None and math.isfinite(dot.x) and math.isfinite(dot.y):
            hover = [dot.name, f"{x.label}: {x.write(dot.x)}", f"{y.label}: {y.write(dot.y)}", dot.note]
            centre = plane.x(dot.x), plane.y(dot.y)
            drawn.append(circle("mark see-through s1", *centre, 4.5, "\n".join(filter(None, hover))))
    rows = [["", x.label, y.label, ""]] + [[dot.name, x.write(dot.x), y.write(dot.y), dot.note] for dot in dots]
    return _figure(title, note, drawn, rows)


def _line(plane: Plane, series: Series, number: int) -> list[str]:
    """Draw a line, its band, and a mark for each point that shows its values on hover."""
    style = line_style(number)
    band = [(at, pair) for (at, _), pair in zip(series.points, series.intervals, strict=False) if pair]
    drawn = [plane.band(band, style)] if band else []
    drawn.append(plane.path(series.points, style))
    known = [(at, value) for at, value in series.points if value is not None and math.isfinite(value)]
    x, y = plane.x.axis, plane.y.axis
    for at, value in known[:: math.ceil(len(known) / MAX_POINTS) or 1]:
        centre = plane.x(at), plane.y(value)
        hover = f"{series.name}\n{x.label}: {x.write(at)}\n{y.label}: {y.write(value)}"
        drawn.append(circle(f"mark {style.split()[0]}", *centre, 3.5) if series.dots or len(known) == 1 else "")
        drawn.append(circle("hit", *centre, 7, hover))
    return drawn


def _hover(axis: Axis, column: Column) -> str:
    interval = f"95 % interval: {_interval(axis, column)}" if column.interval else ""
    return "\n".join(filter(None, [column.name, f"{axis.label}: {axis.write(column.value)}", interval, column.note]))


def _interval(axis: Axis, column: Column) -> str:
    return f"{axis.write(column.interval[0])} to {axis.write(column.interval[1])}" if column.interval else NONE


def _column_rows(name: str, axis: Axis, columns: Sequence[Column]) -> list[list[str]]:
    rows = [[column.name, axis.write(column.value), _interval(axis, column), column.note] for column in columns]
    return [[name, axis.label, "95 % interval", ""], *rows]


def _line_rows(x: Axis, y: Axis, series: Sequence[Series]) -> list[list[str]]:
    """Tabulate the lines' values; of a long line, the first, the last and evenly spaced points are listed."""
    max_rows = max(2, TABLE_ROWS // max(1, len(series)))
    chosen: set[float] = set()
    for curve in series:
        at = [x for x, _ in curve.points]
        chosen.update(
            at if len(at) <= max_rows else (at[round(row * (len(at) - 1) / (max_rows - 1))] for row in range(max_rows))
        )
    xs = sorted(chosen)
    values = [dict(curve.points) for curve in series]
    names = [y.label] if len(series) == 1 else [curve.name for curve in series]
    return [[x.label, *names]] + [[x.write(at), *(y.write(heights.get(at)) for heights in values)] for at in xs]


def _figure(
    title: str,
    note: str,
    drawn: Sequence[str],
    rows: Sequence[Sequence[str]],
    legend: Sequence[tuple[str, int]] = (),
    *,
    blocks: bool = False,
    height: float = HEIGHT,
) -> str:
    """Return the chart with its title, legend and table."""
    head, *body = rows
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    entries = "".join(f"<li>{_sample(style, blocks)}{escape(name)}</li>" for name, style in legend)
    about = f"{title}. The values are in the table below."
    return "".join(
        [
            f'<figure class="chart{" tall" if height > 1.6 * HEIGHT else ""}"><figcaption>{escape(title)}',
            f'<span class="note">{escape(note)}</span>' if note else "",
            "</figcaption>",
            f'<ul class="legend" aria-hidden="true">{entries}</ul>' if legend else "",
            f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(about)}">{"".join(drawn)}</svg>',
            '<details><summary>Values</summary><div class="table-scroll" tabindex="0">',
            f"<table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div></details></figure>",
        ]
    )


def _sample(style: int, block: bool) -> str:
    """Return a sample of a series' style, for the legend."""
    shape = rect(f"bar s{style}", 4, 0, 12, 10) if block else f'<path class="line {line_style(style)}" d="M1 5H21"/>'
    return f'<svg viewBox="0 0 22 10" aria-hidden="true">{shape}</svg>'
