"""The clock of a training with Lightning's Trainer, which asr and NeMo use."""

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from benchmarks.time_to_wer.watch import Transcribe, Watch


class Watched(pl.callbacks.Callback):
    """Evaluate in training; the trainer's own validations, in which asr also writes checkpoints, do not count."""

    def __init__(self, num_steps: int, transcribe: Transcribe, watch: Watch) -> None:
        self._num_steps, self._transcribe, self._watch = num_steps, transcribe, watch
        self._validation = ExitStack()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._watch.begin(self._num_steps)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:
        """Evaluate the model if it is time to."""
        pl_module.eval()
        self._watch.step(trainer.global_step, self._transcribe)
        pl_module.train()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._validation.enter_context(self._watch.paused())

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Go on."""
        self._validation.close()
