"""Saying that CTC has not begun to read, and what may be the cause."""

import logging

import lightning.pytorch as pl

from asr.text.numbers import percent

logger = logging.getLogger(__name__)

STUCK = 0.995  # blank in so many of the frames: no word is written
PATIENCE = 2  # validations in a row; early in a training blank is what every CTC net says first
CAUSES = (
    "a learning rate that is too high or too low (optimizer.lr), too few steps so far (schedule.warmup_steps, "
    "trainer.max_epochs), masks on a small corpus (augment=[speed_perturb]), texts that are not those of their audio "
    "(python -m asr.doctor). Whether the net can learn at all, debug=overfit tells"
)


class StuckAtBlank(pl.Callback):
    """Warn once where validation after validation nearly every frame is blank."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook; a head without a frame head logs no ratio."""
        ratio = float(trainer.callback_metrics.get("valid/blank_ratio", 0.0))
        self._in_a_row = self._in_a_row + 1 if ratio >= STUCK and trainer.global_step > 0 else 0
        if self._in_a_row == PATIENCE:
            what = f"blank in {percent(ratio)} of the frames of {PATIENCE} validations in a row"
            logger.warning("the net writes nothing: %s. Likely causes: %s.", what, CAUSES)
