"""A trial of the largest batches before training, so that a run without enough memory fails immediately."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from asr.core.objective.parts import TrainedBatch

logger = logging.getLogger(__name__)


class LargestBatchFirst(pl.callbacks.Callback):
    """Take an optimizer step on the largest batches of the plan, and undo the step.

    Parameters, buffers, optimizer and random state are restored bit for bit. Each batch runs before and after an
    optimizer step, so that the measured peak also includes the optimizer's state, as in all steps after the first.

    Args:
        largest: makes this process's part of the largest batches; all processes must make equal numbers of batches.
    """

    def __init__(self, largest: Callable[[], Sequence[TrainedBatch]]) -> None:
        self._largest = largest

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Run the trial, after a checkpoint is restored and the model is on its device."""
        logger.info("trying the largest batches")
        device = trainer.strategy.root_device
        optimizer = trainer.optimizers[0]
        weights = apply_to_collection(pl_module.state_dict(), Tensor, _copy_on_cpu)
        state = apply_to_collection(optimizer.state_dict(), Tensor, _copy_on_cpu)
        fresh = not optimizer.state
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for batch in self._largest():
                moved = batch.to(device)
                for last in (False, True):
                    with trainer.precision_plugin.train_step_context():
                        loss = pl_module.losses(moved).loss.sum()
                    loss.backward()
                    if not last:
                        optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
        pl_module.load_state_dict(weights)
        if fresh:
            optimizer.state.clear()
        else:
            optimizer.load_state_dict(state)
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device) / 2**30
            logger.info("the largest batch fits into memory: peak %.1f GiB", peak)


def _copy_on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()  # a copy on the device would distort the trial
