"""Optional training callbacks, except checkpointing."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LambdaCallback

from asr.checkpoint.saved import PERPLEXITY
from asr.training.blank import StuckAtBlank
from asr.training.early_stopping import Patience
from asr.training.lightning_internals import moving_average, validate
from asr.training.memory_check import LargestBatchFirst
from asr.training.profile import Profile
from asr.training.sharded_average import ShardedAverage, WholeInValidation
from asr.training.sharding import is_sharded
from asr.training.step_callbacks import step_callbacks

if TYPE_CHECKING:
    from asr.data.text_set import TextBatch
    from asr.run.language_model_settings import LanguageModelSettings
    from asr.run.preparation import Prepared
    from asr.run.settings import RunSettings
    from asr.training.data_module import SpeechData
    from asr.training.task import RecognitionTask


def besides_steps(
    trainer: pl.Trainer, settings: "RunSettings", prepared: "Prepared", task: "RecognitionTask", data: "SpeechData"
) -> list[pl.Callback]:
    """Make the callbacks of a training run, in the order in which they are called.

    Args:
        trainer: trainer of the run.
        settings: settings of the run.
        prepared: the run's folder, initial model and checkpoint.
        task: the task to train.
        data: the data to train on.
    """
    callbacks = [*step_callbacks(settings, task.model, data.worst_batches), StuckAtBlank()]
    if prepared.start is not None and prepared.state.resume is None:
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, task: validate(trainer)))
    callbacks += _weights(trainer, settings.ema.decay)
    if settings.early_stopping.patience is not None:
        callbacks.append(Patience(settings.early_stopping.patience, task.measure))
    if settings.debug.profile_batches is not None:
        callbacks.append(Profile(prepared.state.run_dir, settings.debug.profile_batches))
    return callbacks


def besides_text_steps(
    trainer: pl.Trainer, settings: "LanguageModelSettings", largest: "Callable[[], Sequence[TextBatch]]"
) -> list[pl.Callback]:
    """Make the callbacks for training a language model, in the order in which they are called.

    Args:
        trainer: trainer of the run.
        settings: settings of the run.
        largest: makes this process's share of the largest batches.
    """
    callbacks: list[pl.Callback] = [LargestBatchFirst(largest)]
    callbacks += _weights(trainer, settings.ema.decay)
    if settings.early_stopping.patience is not None:
        callbacks.append(Patience(settings.early_stopping.patience, PERPLEXITY))
    return callbacks


def _weights(trainer: pl.Trainer, decay: float | None) -> list[pl.Callback]:
    """Make the callbacks that provide the weights for validations."""
    if is_sharded(trainer):
        return [WholeInValidation() if decay is None else moving_average(decay, ShardedAverage)]
    return [] if decay is None else [moving_average(decay)]
