"""The plot area of a chart, and the marks drawn there, as SVG.

The browser shows the <title> of a mark on hover; chart.js shows it without the browser's delay.
"""

import math
from collections.abc import Sequence

from asr.apps.web.page import escape
from asr.apps.web.scale import Axis, Scale

WIDTH, HEIGHT = 420.0, 250.0  # size of a chart in its own units, which are CSS pixels if the page is wide enough
TOP, RIGHT, BOTTOM = 12.0, 12.0, 44.0
CHARACTER = 6.6  # approximate width of a digit in labels
STYLES = 6  # .s1 to .s6 of style.css; lines 2 to 4 are dashed as well
MAX_POINTS = 400  # maximum number of points of a line that show their values on hover


class Plane:
    """Two axes with their scales.

    Args:
        x: horizontal axis.
        y: vertical axis.
        across: values that the range of x must include.
        up: values that the range of y must include.
        x_zero: whether x begins at 0.
        y_zero: whether y begins at 0.
        left: horizontal position of the vertical axis; None: chosen by the width of its labels.
        height: height of the whole chart.
    """

    def __init__(
        self,
        x: Axis,
        y: Axis,
        across: Sequence[float | None],
        up: Sequence[float | None],
        *,
        x_zero: bool = False,
        y_zero: bool = True,
        left: float | None = None,
        height: float = HEIGHT,
    ) -> None:
        self.top, self.bottom, self.right = TOP, height - BOTTOM, WIDTH - RIGHT
        self.y = Scale(y, up, self.bottom, self.top, y_zero)
        widest = max((len(y.tick(tick)) for tick in self.y.ticks), default=1)
        self.left = 30.0 + widest * CHARACTER if left is None else left
        self.x = Scale(x, across, self.left, self.right, x_zero)

    def x_ticks(self, *, grid: bool = False) -> list[str]:
        """Draw the values of x, with vertical grid lines if `grid`."""
        drawn = []
        for tick in self.x.ticks:
            at = self.x(tick)
            if grid:
                drawn.append(line("grid", at, self.top, at, self.bottom))
            drawn.append(label(at, self.bottom + 17, self.x.axis.tick(tick), "middle"))
        return drawn

    def y_ticks(self) -> list[str]:
        """Draw the values of y, with horizontal grid lines."""
        drawn = []
        for tick in self.y.ticks:
            at = self.y(tick)
            drawn.append(line("grid", self.left, at, self.right, at))
            drawn.append(label(self.left - 7, at + 4, self.y.axis.tick(tick), "end"))
        return drawn

    def names(self) -> list[str]:
        """Draw the horizontal axis, and the labels of both axes."""
        middle = (self.top + self.bottom) / 2
        aside = f'transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle"'
        return [
            line("axis", self.left, self.bottom, self.right, self.bottom),
            label((self.left + self.right) / 2, self.bottom + 37, self.x.axis.label, "middle", "strong"),
            f'<text class="strong" {aside}>{escape(self.y.axis.label)}</text>' if self.y.axis.label else "",
        ]

    def diagonal(self) -> str:
        """Draw the line y = x."""
        low, high = max(self.x.low, self.y.low), min(self.x.high, self.y.high)
        return line("diagonal", self.x(low), self.y(low), self.x(high), self.y(high))

    def path(self, points: Sequence[tuple[float, float | None]], kind: str) -> str:
        """Draw a line through points, interrupted where y is None or not finite."""
        steps, pen = [], "M"
        for at, value in points:
            if value is None or not math.isfinite(value):
                pen = "M"
            else:
                steps.append(f"{pen}{self.x(at):.1f} {self.y(value):.1f}")
                pen = "L"
        return f'<path class="line {kind}" d="{"".join(steps)}"/>'

    def band(self, bounds: Sequence[tuple[float, tuple[float, float]]], kind: str) -> str:
        """Draw the area between two lines."""
        upper = [f"{self.x(at):.1f},{self.y(high):.1f}" for at, (_, high) in bounds]
        lower = [f"{self.x(at):.1f},{self.y(low):.1f}" for at, (low, _) in reversed(bounds)]
        return f'<polygon class="band {kind}" points="{" ".join(upper + lower)}"/>'

    def column(self, centre: float, width: float, value: float, kind: str) -> str:
        """Draw a bar from the bottom."""
        top = self.y(value)
        return rect(f"bar {kind}", centre - width / 2, top, width, self.bottom - top)

    def whisker(self, centre: float, low: float, high: float) -> str:
        """Draw a vertical interval."""
        first, last = self.y(low), self.y(high)
        caps = f"M{centre - 4:.1f} {first:.1f}h8M{centre - 4:.1f} {last:.1f}h8"
        return f'<path class="whisker" d="M{centre:.1f} {first:.1f}V{last:.1f}{caps}"/>'


def line_style(number: int) -> str:
    """Return the classes (colour and dashes) of a line, numbered from 1."""
    style = (number - 1) % STYLES + 1
    return f"s{style} dash{style}" if 2 <= style <= 4 else f"s{style}"


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Draw a straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def rect(kind: str, x: float, y: float, width: float, height: float, hover: str = "") -> str:
    """Draw a rectangle; a rectangle of kind "hit" is invisible, and shows its text on hover."""
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}>{title(hover)}</rect>'


def circle(kind: str, x: float, y: float, radius: float, hover: str = "") -> str:
    """Draw a dot."""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title(hover)}</circle>'


def label(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    """Draw a text that begins ("start"), ends ("end") or is centred ("middle") at x."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def title(text: str) -> str:
    """Return the text that a mark shows on hover."""
    return f"<title>{escape(text)}</title>" if text else ""


def shorten(text: str, width: float) -> str:
    """Shorten a name to a width, with an ellipsis at its end."""
    max_characters = max(3, int(width / CHARACTER))
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
