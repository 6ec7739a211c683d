"""Early stopping: end a training run whose validations no longer improve."""

import logging
import math
from typing import Any

import lightning.pytorch as pl

from asr.text.numbers import counted
from asr.training.progress import scored

logger = logging.getLogger(__name__)


class Patience(pl.callbacks.EarlyStopping):
    """Stop after `patience` consecutive validations without a new best WER or perplexity.

    If a run starts from a model (`init.from`), the validation of that model counts as the first best value. A run that
    is resumed after early stopping stops again immediately; Lightning alone would continue it. Validations without a
    finite value, as from references without words, are not counted; Lightning alone would stop at the first of them.

    Args:
        patience: number of validations.
        measure: metric of validations.
    """

    def __init__(self, patience: int, measure: str) -> None:
        self._measure = measure
        self._is_reported = False  # whether a validation without a finite value was logged
        super().__init__(f"valid/{measure}", mode="min", patience=patience, check_on_train_epoch_end=False)

    @property
    def reason(self) -> str | None:
        """Why the training has stopped; None if it has not stopped for lack of improvement."""
        if self.wait_count < self.patience:
            return None
        name, best = scored(self._measure, float(self.best_score), 2)
        return f"no better {name} than {best} in {counted(self.patience, 'validation')} (early_stopping.patience)"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop immediately if the run had stopped before it was resumed."""
        trainer.should_stop = self.wait_count >= self.patience

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the validation with the best one, unless its value is not finite."""
        score = float(trainer.callback_metrics[self.monitor])
        if math.isfinite(score):
            super().on_validation_end(trainer, pl_module)
        elif not self._is_reported:
            self._is_reported = True
            name, _ = scored(self._measure, score)
            cause = "for example because the references have no words"
            logger.warning("early stopping ignores validations whose %s is not finite; got %s, %s", name, score, cause)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except the patience, which comes from the settings."""
        super().load_state_dict(state_dict | {"patience": self.patience})
