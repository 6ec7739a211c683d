"""A warning when a CTC model outputs only blanks."""

import logging

import lightning.pytorch as pl

from asr.text.numbers import percent

logger = logging.getLogger(__name__)

STUCK = 0.995  # with a larger fraction of blank frames, no word is recognised
PATIENCE = 2  # number of validations in a row, because every CTC model outputs only blanks early in its training
CAUSES = (
    "a learning rate that is too high or too low (optimizer.lr), too few steps so far (schedule.warmup_steps, "
    "trainer.max_epochs), masks on a small corpus (augment=[speed_perturb]), texts that do not match their audio "
    "(python -m asr.doctor). debug=overfit tests whether the model can learn at all"
)


class StuckAtBlank(pl.Callback):
    """Warn once if nearly every frame is blank in `PATIENCE` validations in a row."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the blank ratio, which is logged only for models with a frame head."""
        ratio = float(trainer.callback_metrics.get("valid/blank_ratio", 0.0))
        self._in_a_row = self._in_a_row + 1 if ratio >= STUCK and trainer.global_step > 0 else 0
        if self._in_a_row == PATIENCE:
            blanks = f"{percent(ratio)} of the frames are blank in {PATIENCE} validations in a row"
            logger.warning("the model recognises nothing: %s. Likely causes: %s.", blanks, CAUSES)
