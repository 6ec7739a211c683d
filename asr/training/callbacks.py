"""What happens besides the steps of a training, as the config chooses it, but for saving."""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback
from torch import nn

from asr.training.blank import StuckAtBlank
from asr.training.compiled_blocks import CompiledBlocks, Inductor
from asr.training.early_stopping import Patience
from asr.training.frozen import Frozen
from asr.training.lightning_internals import validate
from asr.training.memory_check import LargestBatchFirst
from asr.training.profile import Profile
from asr.training.recorded_passes import PassRecording, cuda_passes

if TYPE_CHECKING:
    from asr.run.preparation import Prepared
    from asr.training.data_module import SpeechData
    from asr.training.task import RecognitionTask


def besides_steps(
    config: dict[str, Any], prepared: "Prepared", task: "RecognitionTask", data: "SpeechData"
) -> list[pl.Callback]:
    """Make the callbacks of a training, in the order in which they are called.

    Args:
        config: the resolved config.
        prepared: of the run.
        task: that is trained.
        data: that it is trained on.
    """
    frozen = Frozen(task.model, config["init"]["frozen"], config["init"]["frozen_steps"])
    callbacks: list[pl.Callback] = [frozen, LargestBatchFirst(data.worst_batches), StuckAtBlank()]
    if prepared.start is not None and prepared.resume is None:
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, task: validate(trainer)))
    compiled = CompiledBlocks(cast(nn.Module, task.model.encoder), Inductor())
    if config["compile_blocks"]:
        callbacks.append(compiled)
    if config["graph_memory"]:
        ready = (lambda: compiled.settled) if config["compile_blocks"] else lambda: True
        callbacks.append(PassRecording(partial(cuda_passes, share=config["graph_memory"], ready=ready)))
    if config["ema"]["decay"] is not None:
        callbacks.append(EMAWeightAveraging(decay=config["ema"]["decay"]))
    if config["early_stopping"]["patience"] is not None:
        callbacks.append(Patience(config["early_stopping"]["patience"]))
    if config["debug"]["profile_batches"] is not None:
        callbacks.append(Profile(prepared.run_dir, config["debug"]["profile_batches"]))
    return callbacks
