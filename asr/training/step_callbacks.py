"""Callbacks around a model's steps: frozen weights, trial of the largest batches, compilation."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import lightning.pytorch as pl

from asr.data.batch import Batch
from asr.recognition.model import Model
from asr.training.compiled_blocks import CompiledBlocks, Inductor
from asr.training.frozen import Frozen
from asr.training.memory_check import LargestBatchFirst

if TYPE_CHECKING:
    from asr.run.settings import RunSettings


def step_callbacks(settings: "RunSettings", model: Model, largest: Callable[[], Sequence[Batch]]) -> list[pl.Callback]:
    """Make the callbacks, in the order in which they must run.

    Args:
        settings: settings of the run.
        model: the model to train.
        largest: makes this process's part of the largest batches.
    """
    callbacks: list[pl.Callback] = [
        Frozen(model, settings.init.frozen, settings.init.frozen_steps),
        LargestBatchFirst(largest),
    ]
    if settings.compile_blocks:
        callbacks.append(CompiledBlocks(model.encoder, Inductor()))
    return callbacks
