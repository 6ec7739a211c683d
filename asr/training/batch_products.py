"""The choice of the library that computes matrix products in training steps."""

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from asr.system.matrix_products import MIN_FRAMES, large_products


class BatchProducts(pl.Callback):
    """During each training step, use the library that this process has chosen for large matrix products.

    Batches are planned to contain many seconds of audio, so the products of every training step count as large. Outside
    of steps, torch chooses the library: loading processes, which are forked between steps, must compute the same
    features as this process.
    """

    def __init__(self) -> None:
        self._context = ExitStack()

    def on_train_batch_start(self, *_: Any) -> None:
        """Choose the library for the forward and the backward pass."""
        self._context.enter_context(large_products(MIN_FRAMES))

    def on_train_batch_end(self, *_: Any) -> None:
        """Return to torch's choice."""
        self._context.close()

    def on_exception(self, *_: Any) -> None:
        """Return to torch's choice after an error in a step."""
        self._context.close()
