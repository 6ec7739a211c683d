"""Format numbers for tables, logs and pages."""

import math
from collections.abc import Callable, Sequence

NONE = "-"  # written for a missing value


def number(value: float | None) -> str:
    """Write a number with four significant digits, a whole number with all digits, and thousands separators."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e15 else f"{value:,.0f}"


def finite(text: str) -> float:
    """Read a finite number, the value of an option.

    Raises:
        ValueError: the text is not a finite number.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


finite.__name__ = "number"  # for argparse's message: invalid number value


def percent(fraction: float | None, decimals: int = 1) -> str:
    """Write a fraction as a percentage."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{decimals}f} %"


def rate(fraction: float | None) -> str:
    """Write an error rate as a percentage with two decimals, without the percent sign, for table columns."""
    return percent(fraction, 2).removesuffix(" %")


def points(difference: float | None) -> str:
    """Write the difference of two error rates in percentage points, with its sign."""
    return NONE if difference is None else f"{100 * difference:+.2f}"


def interval(ends: Sequence[float] | None, write: Callable[[float | None], str] = rate) -> str:
    """Write both ends of an interval."""
    return NONE if ends is None else " to ".join(map(write, ends))


def probability(value: float | None, equals: str = "") -> str:
    """Write a p-value with three decimals after the prefix `equals`, or "< 0.001": a bootstrap is not more precise."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{equals}{value:.3f}"


def counted(count: int, noun: str) -> str:
    """Write a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a duration in seconds, minutes, or hours and minutes."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
