"""The library of matrix products in training steps."""

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from asr.system.matrix_products import MIN_FRAMES, large_products


class BatchProducts(pl.Callback):
    """Use the library that this process chose for matrix products, from the beginning of a training step to its end.

    A training batch is planned by its seconds of audio, so it counts as large. Outside of steps, torch's own choice is
    used, because loading processes, which are forked between steps, must compute the same features as this process.
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
