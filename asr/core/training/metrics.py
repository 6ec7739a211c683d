"""The file metrics.csv, which has one line per logged step; settings and hypotheses of a run in TensorBoard."""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard.summary import hparams

from asr.base.system.files import write_whole_text
from asr.core.run.names import EXAMPLES
from asr.core.run.validation_samples import ValidationSample, read_samples
from asr.core.training.task import TrainingTask


class MetricsFile(Logger):
    """Write metrics as CSV; each line is written as soon as it is logged.

    The metrics of a validation are added to the line of the last step before the validation. Lightning's CSVLogger
    deletes the file when a run resumes; this class removes only the lines of the steps that are repeated.

    Args:
        path: path of the file.
        done: number of optimizer steps that the run has completed.
    """

    def __init__(self, path: Path, done: int) -> None:
        super().__init__()
        self.path = path
        self._done = done
        self._columns: list[str] = []
        self._last: dict[str, Any] = {"step": -1}  # the last line
        self._last_begins = 0  # position of the last line in bytes

    name = "metrics"
    version = ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line, or extend the last line if it has the same step."""
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
        """Do nothing: config.yaml contains the hyperparameters."""

    def _widen(self, line: Mapping[str, Any]) -> None:
        """Rewrite the file with the new columns of `line`."""
        rows = self._read()
        if not self._columns:  # first line since the run started or resumed
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
            return list(csv.DictReader(file, restval=""))  # the last line may be incomplete


def _line(values: Sequence[str]) -> str:
    """Return a line of CSV, with quotes where values need them, such as names of manifests."""
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


class TensorBoardTexts(pl.Callback):
    """Write the settings as hyper-parameters, and the hypotheses of each validation as a table.

    Args:
        logger: TensorBoard logger of the run.
        resolved: all settings of the run.
        run_dir: the run folder, which has the hypotheses; a language model has none.
    """

    def __init__(self, logger: TensorBoardLogger, resolved: Mapping[str, Any], run_dir: Path) -> None:
        self._logger, self._resolved, self._examples = logger, resolved, run_dir / EXAMPLES

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the settings; TensorBoard compares runs by the metric of their validations."""
        if trainer.is_global_zero:
            metric = f"valid/{cast(TrainingTask, pl_module).measure.name}"
            for summary in hparams(dict(_flat(self._resolved)), {metric: 0.0}):
                self._logger.experiment.file_writer.add_summary(summary)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the hypotheses of the validation, which the task has stored."""
        if trainer.is_global_zero:
            step = trainer.global_step
            samples = [sample for sample in read_samples(self._examples) if sample.step == step]
            if samples:
                self._logger.experiment.add_text("valid/hypotheses", "".join(_table(samples)), step)


def _flat(settings: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value if isinstance(value, bool | int | float | str) else str(value)


def _table(samples: list[ValidationSample]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| utterance | reference | hypothesis |\n|---|---|---|\n"
    for sample in samples:
        cells = (text.replace("|", "\\|") for text in (sample.id, sample.reference, sample.hypothesis))
        yield f"| {' | '.join(cells)} |\n"
