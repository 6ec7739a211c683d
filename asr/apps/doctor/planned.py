"""The training set and the batch plan of a run that has not started."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from asr.core import build
from asr.core.data.dataset import Augmentation
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.manifest import Utterance
from asr.core.data.position import start_of_epoch
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings


class Planned(NamedTuple):
    """What a run will train on.

    Args:
        training_set: training utterances.
        augmentation: augmentation of the training utterances.
        first: batch plan of the first epoch.
        per_epoch: optimizer steps of the first epoch.
        total: optimizer steps of the run.
    """

    training_set: TrainingSet
    augmentation: Augmentation
    first: EpochPlan
    per_epoch: int
    total: int


def training_set_of(
    settings: RunSettings, utterances: Sequence[Utterance], model: Model, counts: TokenCounts | None = None
) -> tuple[TrainingSet, Augmentation]:
    """Return the training set of a run, and its augmentation; the arguments are those of `planned`.

    `counts` are the token counts of the utterances; None: they are counted.
    """
    augmentation = build.build_augmentation(settings.components, model.features.sample_rate)
    of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
    return TrainingSet(utterances, model.features, model.reference, *of_plan, counts), augmentation


def planned(settings: RunSettings, utterances: Sequence[Utterance], model: Model) -> Planned:
    """Plan a run.

    Args:
        settings: settings of the run.
        utterances: utterances to train on; the model's tokenizer must cover their texts.
        model: model with the run's tokenizer, features and head.
    """
    training_set, augmentation = training_set_of(settings, utterances, model)
    start = start_of_epoch(0, settings.trainer.num_processes()[0])
    first, bounds = training_set.epoch(start), settings.trainer.bounds
    per_epoch = math.ceil(len(first) / bounds.accumulate)
    return Planned(training_set, augmentation, first, per_epoch, training_set.total_steps(start, 0, bounds))
