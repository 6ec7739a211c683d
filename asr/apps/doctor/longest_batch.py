"""The longest batch whose training steps fit into the free memory, for the model as it is trained."""

import torch

from asr.apps.doctor.batch_size import fitting_batch_seconds
from asr.apps.doctor.trial import device_of
from asr.core.data.token_counts import TokenCounts
from asr.core.data.utterances import Utterances
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings
from asr.core.training.frozen import Frozen
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.errors import InputError


def find_batch_seconds(
    settings: RunSettings, utterances: Utterances, model: Model, counts: TokenCounts | None = None
) -> float:
    """Return the longest `data.batch_seconds` that fits; see `asr.apps.doctor.batch_size.fitting_batch_seconds`.

    Args:
        settings: settings of the run.
        utterances: utterances to train on.
        model: new model of the run; it is unusable afterwards.
        counts: token counts of the utterances; None: they are counted.
    """
    if torch.distributed.is_initialized() and device_of(settings).type != "cpu":
        # The trial's batch norms would sum over all processes, which wait for this one.
        must = "data.batch_seconds must be a number if torchrun or SLURM starts the processes"
        raise InputError(f"{must}; got auto. python -m asr.plan data.batch_seconds=auto on one GPU finds the number.")
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    Frozen(model, settings.init.frozen, settings.init.frozen_steps)  # its weights have no gradients
    return fitting_batch_seconds(settings, utterances, model, counts)
