"""Stopping when validations no longer better their measure."""

import logging
from typing import Any

import lightning.pytorch as pl

from asr.training.progress import scored

logger = logging.getLogger(__name__)


class Patience(pl.callbacks.EarlyStopping):
    """Stop after so many validations in a row without a better WER, or perplexity.

    The first to be bettered is what a run starts from (`init.from`), where that is a model. A run that is resumed
    behind its end stops again: Lightning forgets that it had.

    Args:
        patience: number of validations.
        measure: what they measure.
    """

    def __init__(self, patience: int, measure: str) -> None:
        self._measure = measure
        super().__init__(f"valid/{measure}", mode="min", patience=patience, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        trainer.should_stop = self.wait_count >= self.patience

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if self.wait_count >= self.patience:
            best = scored(self._measure, float(self.best_score), 2)
            logger.info("stopped: no better %s than %s in %d validations", *best, self.patience)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's hook; patience is the setting's, and not the checkpoint's."""
        super().load_state_dict(state_dict | {"patience": self.patience})
