"""A benchmark's rows: printed as a Markdown table while they come, then kept as JSON and as a page with bars."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asr.system.files import write_whole_text
from asr.web.chart import Axis, Column, bar_chart
from asr.web.page import escape, page


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all benchmarks take."""
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="of each contender; medians are shown")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), metavar="DIR")


class Results:
    """A table that is printed row by row.

    Args:
        name: of the benchmark: its files are `<name>.json` and `<name>.html`.
        columns: heading to how its values are written, in order; None, as in `row`, is written "-".
        bars: heading of the column that a bar is as long as.
        within: headings whose values a chart is of; a bar is named by the other columns up to `bars`.
    """

    def __init__(
        self, name: str, columns: Mapping[str, Callable[[Any], str]], *, bars: str, within: tuple[str, ...] = ()
    ) -> None:
        self.name, self.columns, self.bars, self.within = name, dict(columns), bars, within
        self.rows: list[dict[str, Any]] = []
        self._print_line(list(self.columns))
        self._print_line(["---" if write is str else "---:" for write in self.columns.values()])

    def row(self, *values: object) -> None:
        """Print a row: a value for each column."""
        held = dict(zip(self.columns, values, strict=True))
        self.rows.append(held)
        self._print_line([self._written(heading, held) for heading in self.columns])

    def keep(self, folder: Path, about: Mapping[str, object]) -> None:
        """Write the files, `about` (machine, versions, settings) with them."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = {"about": dict(about), "rows": self.rows}
        write_whole_text(folder / f"{self.name}.json", json.dumps(whole, indent=2) + "\n")
        write_whole_text(folder / f"{self.name}.html", self._page(about))
        print(f"\n{folder / self.name}.json, {folder / self.name}.html\n", flush=True)

    def _page(self, about: Mapping[str, object]) -> str:
        headings = list(self.columns)
        named_by = [
            one for one in headings[: headings.index(self.bars)] if one not in self.within and self.columns[one] is str
        ]
        groups: dict[str, list[Column]] = {}
        for row in self.rows:
            if row[self.bars] is not None:
                group = ", ".join(f"{heading} {self._written(heading, row)}" for heading in self.within)
                bar = Column(" ".join(self._written(heading, row) for heading in named_by), row[self.bars])
                groups.setdefault(group, []).append(bar)
        charts = [
            bar_chart(f"{self.bars} {group}".strip(), Axis(self.bars), bars, name="contender")
            for group, bars in groups.items()
        ]
        facts = f"<p>{escape(', '.join(f'{key} {value}' for key, value in about.items()))}</p>"
        title = f"Benchmark: {self.name.replace('_', ' ')}"
        return page(title, f'<main><h1>{escape(title)}</h1>{facts}<div class="charts">{"".join(charts)}</div></main>')

    def _written(self, heading: str, row: Mapping[str, Any]) -> str:
        return "-" if row[heading] is None else self.columns[heading](row[heading])

    @staticmethod
    def _print_line(cells: list[str]) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)


def fixed(digits: int) -> Callable[[float], str]:
    """Write numbers with so many digits behind the point."""
    return lambda value: f"{value:,.{digits}f}"


def share(value: float) -> str:
    """Write a fraction as a percentage."""
    return f"{value:.1%}"
