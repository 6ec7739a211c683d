"""Optional training callbacks, except checkpointing."""

from typing import TYPE_CHECKING

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback

from asr.training.blank import StuckAtBlank
from asr.training.early_stopping import Patience
from asr.training.lightning_internals import validate
from asr.training.profile import Profile
from asr.training.step_callbacks import step_callbacks

if TYPE_CHECKING:
    from asr.run.preparation import Prepared
    from asr.run.settings import RunSettings
    from asr.training.data_module import SpeechData
    from asr.training.task import RecognitionTask


def besides_steps(
    settings: "RunSettings", prepared: "Prepared", task: "RecognitionTask", data: "SpeechData"
) -> list[pl.Callback]:
    """Make the callbacks of a training, in the order in which they are called.

    Args:
        settings: of the run.
        prepared: of the run.
        task: that is trained.
        data: that it is trained on.
    """
    callbacks = [*step_callbacks(settings, task.model, data.worst_batches), StuckAtBlank()]
    if prepared.start is not None and prepared.resume is None:
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, task: validate(trainer)))
    if settings.ema.decay is not None:
        callbacks.append(EMAWeightAveraging(decay=settings.ema.decay))
    if settings.early_stopping.patience is not None:
        callbacks.append(Patience(settings.early_stopping.patience))
    if settings.debug.profile_batches is not None:
        callbacks.append(Profile(prepared.run_dir, settings.debug.profile_batches))
    return callbacks
