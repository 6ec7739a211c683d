"""Charts: positions agree with the axis, NaN and None leave a gap, and the table has the drawn values."""

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr.apps.web.chart import (
    Axis,
    Column,
    Dot,
    Series,
    bar_chart,
    column_chart,
    histogram,
    interval_chart,
    line_chart,
    scatter_chart,
)
from asr.apps.web.plane import HEIGHT, WIDTH
from asr.apps.web.scale import Scale, log_ticks, round_ticks
from asr.base.text.numbers import percent


class Elements(HTMLParser):
    """The elements of a chart in order, as (tag, attributes), and the cells of its table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attributes}))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    def of(self, tag: str, kind: str) -> list[dict[str, str]]:
        return [
            attributes for name, attributes in self.tags if name == tag and kind in attributes.get("class", "").split()
        ]


def corners(path: str) -> list[tuple[str, float, float]]:
    return [(pen, float(x), float(y)) for pen, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)]


def test_points_of_a_line_are_proportional_to_their_values() -> None:
    html = line_chart("t", Axis("x"), Axis("y"), [Series("a", [(0, 0.0), (1, 1.0), (2, 4.0), (4, 2.0)])])
    places = [(x, y) for _, x, y in corners(Elements(html).of("path", "line")[0]["d"])]
    (x0, y0), (x1, y1), (x2, y2), (x4, y4) = places
    assert (x1 - x0, x2 - x0) == (pytest.approx((x4 - x0) / 4, abs=0.1), pytest.approx((x4 - x0) / 2, abs=0.1))
    assert (y0 - y1, y0 - y4) == (pytest.approx((y0 - y2) / 4, abs=0.1), pytest.approx((y0 - y2) / 2, abs=0.1))
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)


def test_a_logarithmic_axis_gives_each_power_of_ten_equal_space() -> None:
    html = line_chart(
        "t", Axis("x"), Axis("y", log=True), [Series("a", [(0, 1000.0), (1, 100.0), (2, 10.0), (3, 0.1)])]
    )
    heights = [y for _, _, y in corners(Elements(html).of("path", "line")[0]["d"])]
    step = heights[1] - heights[0]
    assert [b - a for a, b in pairwise(heights)] == pytest.approx([step, step, 2 * step], abs=0.2)


def test_a_missing_value_is_a_gap_in_the_line_and_a_dash_in_the_table() -> None:
    points = [(0, 1.0), (1, 2.0), (2, None), (3, math.nan), (4, 3.0), (5, math.inf), (6, 1.0)]
    elements = Elements(line_chart("t", Axis("x"), Axis("y"), [Series("a", points)]))
    assert [pen for pen, _, _ in corners(elements.of("path", "line")[0]["d"])] == ["M", "L", "M", "M"]
    assert [row[1] for row in elements.rows] == ["y", "1", "2", "-", "-", "3", "-", "1"]


def test_the_height_of_bars_is_proportional_to_their_values() -> None:
    columns = [Column("a", 0.1, (0.05, 0.2)), Column("b", 0.2), Column("c", None), Column("d", 0.0)]
    elements = Elements(column_chart("t", Axis("x"), Axis("y", percent), columns))
    heights = [float(bar["height"]) for bar in elements.of("rect", "bar")]
    assert heights == [pytest.approx(heights[1] / 2, abs=0.1), heights[1]]
    assert elements.rows[1:] == [
        ["a", "10.0 %", "5.0 % to 20.0 %", ""],
        ["b", "20.0 %", "-", ""],
        ["c", "-", "-", ""],
        ["d", "0.0 %", "-", ""],
    ]


def test_bars_of_a_histogram_are_stacked_and_show_the_counts_of_the_table() -> None:
    series = [("right", [3, 1]), ("wrong", [1, 1])]
    elements = Elements(histogram("t", Axis("x"), Axis("n"), [0.0, 0.5, 1.0], series))
    tops = [(bar["class"], float(bar["y"]), float(bar["height"])) for bar in elements.of("rect", "bar")[-4:]]
    unit = tops[1][2]
    assert [height for _, _, height in tops] == pytest.approx([3 * unit, unit, unit, unit], abs=0.2)
    assert tops[1][1] + tops[1][2] == pytest.approx(tops[0][1], abs=0.1), "the second bar is on top of the first"
    assert elements.rows == [["from", "to", "right", "wrong"], ["0", "0.5", "3", "1"], ["0.5", "1", "1", "1"]]


def test_the_diagonal_of_a_scatter_chart_has_equal_values_on_both_axes() -> None:
    dots = [Dot("a", 0.1, 0.1), Dot("b", 0.9, 0.9), Dot("c", 0.2, 0.7), Dot("d", None, 0.3)]
    elements = Elements(scatter_chart("t", Axis("x"), Axis("y"), dots, diagonal=True))
    [line] = elements.of("line", "diagonal")
    x1, y1, x2, y2 = (float(line[key]) for key in ("x1", "y1", "x2", "y2"))
    places = [(float(mark["cx"]), float(mark["cy"])) for mark in elements.of("circle", "mark")]
    aside = [(y2 - y1) * (x - x1) - (x2 - x1) * (y - y1) for x, y in places]
    assert aside[:2] == pytest.approx([0, 0], abs=100)  # tolerance: 0.1 units times the length of the line
    assert abs(aside[2]) > 10_000
    assert len(places) == 3


def test_horizontal_bars_are_proportional_to_their_values_and_have_room_for_long_names() -> None:
    values = {"asr 50 + LM, pyctcdecode's pruning": 1.0, "greedy": 2.0, "below": -0.5, "none": None, "nothing": 0.0}
    elements = Elements(bar_chart("t", Axis("x"), [Column(*entry) for entry in values.items()]))
    bars = [(float(bar["x"]), float(bar["width"])) for bar in elements.of("rect", "bar")]
    first, second, below = bars
    assert [second[1], below[1]] == pytest.approx([2 * first[1], first[1] / 2], abs=0.2)
    assert [second[0], below[0] + below[1]] == pytest.approx([first[0], first[0]], abs=0.2)
    assert "asr 50 + LM, pyctcdecode&#x27;s pru" in bar_chart(
        "t", Axis("x"), [Column(*entry) for entry in values.items()]
    )


def test_rows_of_an_interval_chart_are_named_unless_there_are_many() -> None:
    few, many = ([Column(f"speaker {row}", row / 100, (0.0, 1.0)) for row in range(count)] for count in (40, 250))
    assert ">speaker 39</text>" in interval_chart("t", Axis("x"), few)
    html = interval_chart("t", Axis("x"), many)
    assert "</text>" in html
    assert ">speaker 39</text>" not in html
    assert ">speaker 39</td>" in html
    assert float(Elements(html).of("figure", "tall") != []) == 1


CHARTS: dict[str, Callable[[str, float | None], str]] = {
    "line": lambda text, value: line_chart(text, Axis(text), Axis(text), [Series(text, [(0.0, value)])], text),
    "column": lambda text, value: column_chart(text, Axis(text), Axis(text), [Column(text, value, note=text)], text),
    "bar": lambda text, value: bar_chart(text, Axis(text), [Column(text, value, note=text)], text),
    "interval": lambda text, value: interval_chart(text, Axis(text), [Column(text, value, note=text)], text),
    "histogram": lambda text, value: histogram(text, Axis(text), Axis(text), [0.0, 1.0], [(text, [3])] * 2, text),
    "scatter": lambda text, value: scatter_chart(text, Axis(text), Axis(text), [Dot(text, value, value, text)], text),
}


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("value", [None, 0.0, -1.0, 1e-300, 1e300, math.inf, math.nan])
def test_any_value_and_any_text_gives_a_valid_chart(chart: str, value: float | None) -> None:
    html = CHARTS[chart]('<b onclick="x">\'&\udcff', value)
    assert "<b " not in html
    assert 'onclick="x' not in html
    html.encode("utf-8")
    drawn = html[: html.index("<details>")]
    for _, attributes in Elements(drawn).tags:
        for key in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2", "width", "height", "d"):
            assert not re.search("nan|inf|e[+-]", attributes.get(key, "")), (key, attributes)


def test_a_chart_without_values_is_valid() -> None:
    for html in (
        line_chart("t", Axis("x"), Axis("y", log=True), []),
        column_chart("t", Axis("x"), Axis("y"), []),
        interval_chart("t", Axis("x"), []),
        bar_chart("t", Axis("x"), []),
        scatter_chart("t", Axis("x"), Axis("y"), [], diagonal=True),
    ):
        assert html.startswith('<figure class="chart">')


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_ticks_are_few_and_have_round_values_and_cover_the_data(low: float, width: float) -> None:
    ticks = round_ticks(low, low + width)
    assert ticks[0] <= low + 1e-6 * width
    assert ticks[-1] >= low + width - 1e-6 * width
    assert 2 <= len(ticks) <= 8
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)  # 1, 2, 2.5 or 5 times a power of ten
    powers = [step * factor for factor in (1, 2, 4, 5)]
    assert any(power == pytest.approx(10.0 ** round(math.log10(power)), rel=1e-6) for power in powers)


@given(low=st.floats(1e-9, 1e6), factor=st.floats(1.01, 1e9))
def test_ticks_of_a_logarithmic_axis_are_1_2_or_5_times_a_power_of_ten(low: float, factor: float) -> None:
    for tick in log_ticks(low, low * factor):
        assert any(
            tick / first == pytest.approx(10.0 ** round(math.log10(tick / first)), rel=1e-9) for first in (1, 2, 5)
        )


@given(values=st.lists(st.floats(-1e9, 1e9), max_size=5), zero=st.booleans())
@example([5e-324], True)
@example([1e-12, 2e-12], False)
@example([1e9, math.nextafter(1e9, 2e9)], False)
@example([-5e-324, 0.0], False)
def test_a_scale_contains_its_values_and_is_never_reversed(values: list[float], zero: bool) -> None:
    scale = Scale(Axis("x"), values, 10.0, 90.0, zero)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(10 <= place <= 90 for place in places)
    assert not zero or scale.low <= 0


@given(values=st.lists(st.floats(0, 1e300), max_size=5))
@example([5e-324])
@example([5e-324, 1e-300])
@example([2.3e-308, math.nextafter(2.3e-308, 1)])
def test_a_logarithmic_scale_contains_all_positive_values(values: list[float]) -> None:
    scale = Scale(Axis("x", log=True), values, 10.0, 90.0, False)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(10 <= place <= 90 for place in places)


def test_ticks_have_short_labels() -> None:
    assert [Axis("", percent).tick(value) for value in (0.1, 0.025, 1.0)] == ["10 %", "2.5 %", "100 %"]
    assert Axis("").tick(1000.0) == "1,000"
