"""The curves of a run: metrics.csv by column, smoothed, and thinned so that no extreme is lost."""

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
        steps: ascending.
        values: finite, as many.
        not_finite: lines in which the metric was NaN or infinite, which are left out.
    """

    steps: list[int]
    values: list[float]
    not_finite: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def since(self, step: int) -> "Curve":
        """Take the part from a step on."""
        first = bisect_left(self.steps, step)
        return Curve(self.steps[first:], self.values[first:], self.not_finite)

    def smoothed(self, width: int) -> "Curve":
        """Take the mean of the `width` points around each, (width - 1) / 2 to either side; fewer at both ends."""
        reach = max(0, (width - 1) // 2)
        sums = [0.0]
        for value in self.values:
            sums.append(sums[-1] + value)
        means = []
        for place in range(len(self)):
            # As many to the left as to the right: an end that is seen from one side only would lean.
            side = min(reach, place, len(self) - 1 - place)
            means.append((sums[place + side + 1] - sums[place - side]) / (2 * side + 1))
        return Curve(self.steps, means, self.not_finite)

    def thinned(self, buckets: int) -> "Curve":
        """Divide the curve into `buckets` of equal length; keep the first, least, greatest and last point of each."""
        if len(self) <= 4 * buckets:
            return self
        kept: set[int] = set()
        for number in range(buckets):
            places = range(number * len(self) // buckets, (number + 1) * len(self) // buckets)
            least, greatest = min(places, key=self.values.__getitem__), max(places, key=self.values.__getitem__)
            kept |= {places[0], least, greatest, places[-1]}
        chosen = sorted(kept)
        steps, values = ([sequence[place] for place in chosen] for sequence in (self.steps, self.values))
        return Curve(steps, values, self.not_finite)  # type: ignore[arg-type]


def read_curves(path: Path) -> dict[str, Curve]:
    """Read metrics.csv: each metric with the steps at which it was logged; nothing where there is no file.

    A line that was cut short gives what it has, and one without a step is left out.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lines: list[list[str]] = []
        with suppress(csv.Error):  # what is behind it is no CSV
            for line in csv.reader(line.replace("\0", "") for line in file):  # a machine that crashed leaves zeros
                lines.append(line)
    if not lines or STEP not in lines[0]:
        return {}
    return _columns(lines[0], lines[1:])


def _columns(header: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, Curve]:
    steps: dict[str, list[int]] = defaultdict(list)
    values: dict[str, list[float]] = defaultdict(list)
    not_finite: dict[str, int] = defaultdict(int)
    place = header.index(STEP)
    for line in lines:
        if len(line) <= place or not line[place].isdecimal():
            continue
        step = int(line[place])
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
