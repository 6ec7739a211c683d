"""Settings and hypotheses of a run in TensorBoard, in addition to its metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from asr.run.names import EXAMPLES
from asr.run.validation_samples import ValidationSample, read_samples
from asr.training.tasks import TrainingTask


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
            metric = f"valid/{cast(TrainingTask, pl_module).measure}"
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
