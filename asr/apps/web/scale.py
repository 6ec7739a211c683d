"""Axes of charts: round ticks, formatting of values, and their positions."""

import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from asr.base.text.numbers import number

CLOSEST = 1e-9  # values with a smaller difference, relative to the value or to 0.001, count as equal on an axis


@dataclass(frozen=True)
class Axis:
    """Description of an axis.

    Args:
        label: name of the quantity, with the unit.
        write: formats a value or None.
        low: beginning of the axis; None: the smallest value.
        high: end of the axis; None: the largest value.
        log: whether the axis is logarithmic.
    """

    label: str
    write: Callable[[float | None], str] = number
    low: float | None = None
    high: float | None = None
    log: bool = False

    def tick(self, value: float) -> str:
        """Format a value at the axis; decimals that are all zero are left out."""
        return re.sub(r"\.0+(?=\D|$)", "", self.write(value))


class Scale:
    """Map from values to positions.

    Args:
        axis: description of the axis.
        values: values that the range must include; values that are not finite are ignored.
        start: position of the lowest value.
        end: position of the highest value.
        zero: whether the axis begins at 0; ignored if a value is below 0 or the axis is logarithmic.
    """

    def __init__(self, axis: Axis, values: Iterable[float | None], start: float, end: float, zero: bool) -> None:
        self.axis, self.start, self.end = axis, start, end
        least = sys.float_info.min if axis.log else -math.inf
        usable = [value for value in values if value is not None and math.isfinite(value) and value >= least]
        low = min(usable, default=1.0 if axis.log else 0.0) if axis.low is None else axis.low
        high = max([*usable, low], default=1.0) if axis.high is None else axis.high
        if zero and not axis.log and axis.low is None:
            low = min(low, 0.0)
        if high - low <= CLOSEST * (low if axis.log else max(abs(low), abs(high), 1e-3)):
            high = low * 10 if axis.log else low + (max(abs(low), CLOSEST) if low else 1.0)
        ticks = log_ticks(low, high) if axis.log else round_ticks(low, high)
        self.low = min(low, ticks[0]) if axis.low is None else low
        self.high = max(high, ticks[-1]) if axis.high is None else high
        slack = 1e-6 * (self.high - self.low)
        self.ticks = [tick for tick in ticks if self.low - slack <= tick <= self.high + slack]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        share = (value - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers that cover low .. high."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within low .. high, and their multiples by 2 and 5 if there are few powers.

    If no power is within the range, return the powers around the range.
    """
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) >= 2 else [10.0**first, 10.0**last]
