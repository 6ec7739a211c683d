"""metrics.csv: one line for each step that was logged, kept when a run goes on."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class MetricsFile(Logger):
    """Write metrics as CSV; each line is on disk as soon as it is logged.

    Lightning's own CSVLogger deletes the file when a run goes on. Here the lines from the resumed step on are cut, and
    the new ones follow.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []

    name = "metrics"
    version = ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line."""
        line = {"step": step or 0, **metrics}
        fresh = not self._columns
        if fresh or not line.keys() <= set(self._columns):
            earlier = self._read()
            if fresh:
                earlier = [row for row in earlier if int(row["step"]) < line["step"]]
            self._columns = list(dict.fromkeys([*(earlier[0] if earlier else ()), *self._columns, *line]))
            self._write("w", [dict.fromkeys(self._columns, "") | row for row in earlier])
        self._write("a", [line])

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

    def _read(self) -> list[dict[str, str]]:
        if not self.path.is_file():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _write(self, mode: str, rows: list[dict[str, Any]]) -> None:
        with self.path.open(mode, newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            if mode == "w":
                writer.writeheader()
            writer.writerows(rows)
