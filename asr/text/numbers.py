"""Numbers as a person reads them, in tables, logs and pages."""

import math
from collections.abc import Callable, Sequence

NONE = "-"  # how a value that is not there is written


def number(value: float | None) -> str:
    """Write a number in four digits, or as many as a whole number has, with a thousands separator."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """Write a fraction as a percentage."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{decimals}f} %"


def rate(fraction: float | None) -> str:
    """Write an error rate as a percentage with two decimals, without its sign, as the columns of a table are."""
    return percent(fraction, 2).removesuffix(" %")


def points(difference: float | None) -> str:
    """Write the difference of two error rates in percentage points, with its sign."""
    return NONE if difference is None else f"{100 * difference:+.2f}"


def interval(ends: Sequence[float] | None, write: Callable[[float | None], str] = rate) -> str:
    """Write both ends of an interval."""
    return NONE if ends is None else " to ".join(map(write, ends))


def probability(value: float | None, equals: str = "") -> str:
    """Write a p-value as precisely as a bootstrap knows it, behind `equals` unless it is so small that `<` is."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{equals}{value:.3f}"


def counted(count: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a duration to the precision that a reader needs."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
