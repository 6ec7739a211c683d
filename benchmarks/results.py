"""Result tables: each row is printed as Markdown when it is added; all rows are saved as JSON and as an HTML chart."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asr.apps.web.chart import Axis, Column, bar_chart
from asr.apps.web.page import escape, page
from asr.base.system.files import write_whole_text

# Maps each heading of a table, in order, to the function that formats its values.
Columns = dict[str, Callable[[Any], str]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all benchmarks: --turns and --output-dir."""
    parser.add_argument(
        "--turns", type=int, default=5, metavar="N", help="number of turns of each contender; the median is shown"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/benchmarks"), metavar="DIR", help="folder of results"
    )


class Results:
    """A table whose rows are printed as they are added.

    Args:
        name: name of the table; its files are `<name>.json` and `<name>.html`.
        columns: headings and formats; a value of None is shown as "-".
        bars: heading of the column that determines the lengths of the bars.
        group_by: headings of the columns that divide the rows into charts: rows with equal values in these columns are
            drawn in the same chart. Each bar is labelled with its row's values in the other text columns to the left of
            `bars`.

    Attributes:
        figures: further charts of the page (`asr.apps.web.chart`), below the bars.
    """

    def __init__(self, name: str, columns: Columns, *, bars: str, group_by: tuple[str, ...] = ()) -> None:
        self.name, self.columns, self.bars, self.group_by = name, dict(columns), bars, group_by
        self.rows: list[dict[str, Any]] = []
        self.figures: list[str] = []
        self._print_line(list(self.columns))
        self._print_line(["---" if format_value is str else "---:" for format_value in self.columns.values()])

    def row(self, *values: object) -> None:
        """Add and print a row, with one value per column."""
        row = dict(zip(self.columns, values, strict=True))
        self.rows.append(row)
        self._print_line([self._format(heading, row) for heading in self.columns])

    def save(self, folder: Path, about: Mapping[str, object]) -> None:
        """Write the JSON and HTML files, with `about` (machine, versions, settings) in both, and print their names."""
        self.write(folder, about)
        print(f"\n{folder / self.name}.json, {folder / self.name}.html\n", flush=True)

    def write(self, folder: Path, about: Mapping[str, object]) -> None:
        """Write the files with the rows so far, so that they remain if the program is killed."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {"about": dict(about), "rows": self.rows}
        write_whole_text(folder / f"{self.name}.json", json.dumps(content, indent=2) + "\n")
        write_whole_text(folder / f"{self.name}.html", self._page(about))

    def _page(self, about: Mapping[str, object]) -> str:
        headings = list(self.columns)
        label_headings = [
            heading
            for heading in headings[: headings.index(self.bars)]
            if heading not in self.group_by and self.columns[heading] is str
        ]
        groups: dict[str, list[Column]] = {}
        for row in self.rows:
            if row[self.bars] is not None:
                group = ", ".join(f"{heading} {self._format(heading, row)}" for heading in self.group_by)
                bar = Column(" ".join(self._format(heading, row) for heading in label_headings), row[self.bars])
                groups.setdefault(group, []).append(bar)
        charts = [
            bar_chart(f"{self.bars} {group}".strip(), Axis(self.bars), bars, name="contender")
            for group, bars in groups.items()
        ]
        facts = f"<p>{escape(', '.join(f'{key} {value}' for key, value in about.items()))}</p>"
        title = f"Benchmark: {self.name.replace('_', ' ')}"
        drawn = "".join([*charts, *self.figures])
        return page(title, f'<main><h1>{escape(title)}</h1>{facts}<div class="charts">{drawn}</div></main>')

    def _format(self, heading: str, row: Mapping[str, Any]) -> str:
        return "-" if row[heading] is None else self.columns[heading](row[heading])

    @staticmethod
    def _print_line(cells: list[str]) -> None:
        print(f"| {' | '.join(cells)} |", flush=True)


def fixed(digits: int) -> Callable[[Any], str]:
    """Return a function that formats a number with `digits` decimal places."""
    return lambda value: f"{value:,.{digits}f}"


def share(value: float) -> str:
    """Format a fraction as a percentage."""
    return f"{value:.1%}"
