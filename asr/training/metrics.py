"""metrics.csv: one line for each step that was logged, kept when a run is resumed."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from asr.system.files import write_whole_text


class MetricsFile(Logger):
    """Write metrics as CSV; each line is in the file as soon as it is logged.

    What a validation tells is added to the line of the step that it follows. Lightning's own CSVLogger deletes the
    file when a run is resumed; here the lines of the steps that will be done again are cut, and the new ones follow.

    Args:
        path: of the file.
        done: optimizer steps that the run has done.
    """

    def __init__(self, path: Path, done: int) -> None:
        super().__init__()
        self.path = path
        self._done = done
        self._columns: list[str] = []
        self._last: dict[str, Any] = {"step": -1}  # line
        self._last_begins = 0  # in bytes

    name = "metrics"
    version = ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line, or add to the last one."""
        line = {"step": step or 0, **metrics}
        if not line.keys() <= set(self._columns):
            self._widen(line)
        with self.path.open("r+", newline="", encoding="utf-8") as file:
            if line["step"] == self._last["step"]:
                line = self._last | line
                file.seek(self._last_begins)
                file.truncate()
            self._last_begins = file.seek(0, os.SEEK_END)
            csv.DictWriter(file, self._columns).writerow(line)
        self._last = line

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

    def _widen(self, line: Mapping[str, Any]) -> None:
        """Write the file anew with the columns of `line` among its own."""
        rows = self._read()
        if not self._columns:  # not yet begun
            rows = [row for row in rows if row["step"].isdigit() and int(row["step"]) <= self._done]
        self._columns = list(dict.fromkeys([*(rows[0] if rows else ()), *self._columns, *line]))
        lines = [self._columns, *([row.get(name, "") for name in self._columns] for row in rows)]
        texts = [_line(values) for values in lines]
        write_whole_text(self.path, "".join(texts))
        self._last_begins = sum(len(text.encode()) for text in texts[:-1])

    def _read(self) -> list[dict[str, str]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file, restval=""))  # the last line may have been cut short


def _line(values: Sequence[str]) -> str:
    """Write a line of CSV: the name of a column may hold a comma, as the name of a manifest in it."""
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()
