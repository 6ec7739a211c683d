"""What is done to a model's steps, in this order: frozen weights, trial of the largest batches, what makes it fast."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl

from asr.data.batch import Batch
from asr.recognition.model import Model
from asr.training.compiled_blocks import CompiledBlocks, Inductor
from asr.training.frozen import Frozen
from asr.training.memory_check import LargestBatchFirst
from asr.training.recorded_passes import PassRecording, cuda_passes


def step_callbacks(
    config: Mapping[str, Any], model: Model, largest: Callable[[], Sequence[Batch]]
) -> list[pl.Callback]:
    """Make them.

    Args:
        config: the resolved config.
        model: that is trained.
        largest: makes this process's share of the largest batches.
    """
    callbacks: list[pl.Callback] = [
        Frozen(model, config["init"]["frozen"], config["init"]["frozen_steps"]),
        LargestBatchFirst(largest),
    ]
    compiled = CompiledBlocks(model.encoder, Inductor())  # type: ignore[arg-type]  # a module, too
    if config["compile_blocks"]:
        callbacks.append(compiled)
    if config["graph_memory"]:
        ready = (lambda: compiled.settled) if config["compile_blocks"] else lambda: True
        callbacks.append(PassRecording(partial(cuda_passes, share=config["graph_memory"], ready=ready)))
    return callbacks
