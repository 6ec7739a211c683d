"""Early stopping: end a training run whose validations no longer improve."""

import logging
from typing import Any

import lightning.pytorch as pl

from asr.training.progress import scored

logger = logging.getLogger(__name__)


class Patience(pl.callbacks.EarlyStopping):
    """Stop after `patience` consecutive validations without a new best WER or perplexity.

    If a run starts from a model (`init.from`), the validation of that model counts as the first best value. A run that
    is resumed after early stopping stops again immediately; Lightning alone would continue it.

    Args:
        patience: number of validations.
        measure: metric of validations.
    """

    def __init__(self, patience: int, measure: str) -> None:
        self._measure = measure
        super().__init__(f"valid/{measure}", mode="min", patience=patience, check_on_train_epoch_end=False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop immediately if the run had stopped before it was resumed."""
        trainer.should_stop = self.wait_count >= self.patience

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log why the training has stopped."""
        if self.wait_count >= self.patience:
            best = scored(self._measure, float(self.best_score), 2)
            logger.info("stopped: no better %s than %s in %d validations", *best, self.patience)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except the patience, which comes from the settings."""
        super().load_state_dict(state_dict | {"patience": self.patience})
