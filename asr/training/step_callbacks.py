"""Callbacks around a model's steps: frozen weights, trial of the largest batches, compilation, CUDA graphs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import lightning.pytorch as pl

from asr.data.batch import Batch
from asr.recognition.model import Model
from asr.training.compiled_blocks import CompiledBlocks, Inductor
from asr.training.frozen import Frozen
from asr.training.memory_check import LargestBatchFirst
from asr.training.recorded_passes import PassRecording, cuda_passes

if TYPE_CHECKING:
    from asr.run.settings import RunSettings


def step_callbacks(settings: "RunSettings", model: Model, largest: Callable[[], Sequence[Batch]]) -> list[pl.Callback]:
    """Make the callbacks, in the order in which they must run.

    Args:
        settings: of the run.
        model: the model to train.
        largest: makes this process's share of the largest batches.
    """
    callbacks: list[pl.Callback] = [
        Frozen(model, settings.init.frozen, settings.init.frozen_steps),
        LargestBatchFirst(largest),
    ]
    compiled = CompiledBlocks(model.encoder, Inductor())
    if settings.compile_blocks:
        callbacks.append(compiled)
    if settings.graph_memory:
        ready = (lambda: compiled.settled) if settings.compile_blocks else lambda: True
        callbacks.append(PassRecording(partial(cuda_passes, share=settings.graph_memory, ready=ready)))
    return callbacks
