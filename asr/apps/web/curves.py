"""Curves of a run: the columns of metrics.csv, smoothed, and reduced to fewer points that include all extremes."""

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

STEP = "step"


@dataclass(frozen=True)
class Curve:
    """One metric over the optimizer steps.

    Args:
        steps: steps in ascending order.
        values: finite values, one for each step.
        not_finite: number of lines with a value of NaN or infinity, which are left out.
    """

    steps: list[int]
    values: list[float]
    not_finite: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def since(self, step: int) -> "Curve":
        """Return the part of the curve from a step on."""
        first = bisect_left(self.steps, step)
        return Curve(self.steps[first:], self.values[first:], self.not_finite)

    def smoothed(self, width: int) -> "Curve":
        """Return the mean of the `width` points around each point, and of fewer points near the ends."""
        reach = max(0, (width - 1) // 2)
        sums = [0.0]
        for value in self.values:
            sums.append(sums[-1] + value)
        means = []
        for index in range(len(self)):
            # Equal numbers of points on both sides, because a mean over one side would be biased at the ends.
            side = min(reach, index, len(self) - 1 - index)
            means.append((sums[index + side + 1] - sums[index - side]) / (2 * side + 1))
        return Curve(self.steps, means, self.not_finite)

    def thinned(self, buckets: int) -> "Curve":
        """Divide the curve into `buckets` equal parts; return the first, least, greatest and last point of each."""
        if len(self) <= 4 * buckets:
            return self
        selected: set[int] = set()
        for number in range(buckets):
            bucket = range(number * len(self) // buckets, (number + 1) * len(self) // buckets)
            least, greatest = min(bucket, key=self.values.__getitem__), max(bucket, key=self.values.__getitem__)
            selected |= {bucket[0], least, greatest, bucket[-1]}
        chosen = sorted(selected)
        steps, values = ([sequence[index] for index in chosen] for sequence in (self.steps, self.values))
        return Curve(steps, values, self.not_finite)  # type: ignore[arg-type]


def read_curves(path: Path) -> dict[str, Curve]:
    """Read the curve of each metric in metrics.csv; return {} if there is no file.

    The complete values of a truncated line are used; lines without a step are left out.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lines: list[list[str]] = []
        with suppress(csv.Error):  # ignore the rest of a damaged file
            for line in csv.reader(line.replace("\0", "") for line in file):  # NUL bytes remain after a crash
                lines.append(line)
    if not lines or STEP not in lines[0]:
        return {}
    return _columns(lines[0], lines[1:])


def _columns(header: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, Curve]:
    steps: dict[str, list[int]] = defaultdict(list)
    values: dict[str, list[float]] = defaultdict(list)
    not_finite: dict[str, int] = defaultdict(int)
    column = header.index(STEP)
    for line in lines:
        if len(line) <= column or not line[column].isdecimal():
            continue
        step = int(line[column])
        for name, text in zip(header, line, strict=False):
            number = _number(text)
            if number is None or name == STEP:
                continue
            if math.isfinite(number):
                steps[name].append(step)
                values[name].append(number)
            else:
                not_finite[name] += 1
    return {
        name: Curve(steps[name], values[name], not_finite[name])
        for name in header
        if name in steps or name in not_finite
    }


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
