"""The time that the parts of a run take on this machine, measured before the run."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from asr.apps.doctor.forecast import epoch_seconds
from asr.apps.doctor.planned import Planned
from asr.apps.doctor.trial import Trial
from asr.core.data.manifest import Utterance
from asr.core.evaluation.result import evaluate
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.settings import RunSettings

SAMPLE = 8  # utterances whose recognition is timed


class Durations(NamedTuple):
    """Seconds of an optimizer step, and of the recognition of one second of audio."""

    step: float
    recognition: float


def durations(
    settings: RunSettings, planned: Planned, model: Model, recognizer: Recognizer, utterances: Sequence[Utterance]
) -> Durations:
    """Measure steps with synthetic batches of the plan, and the recognition of a few utterances.

    Args:
        settings: settings of the run.
        planned: plan of the run.
        model: model to train; it is unusable afterwards.
        recognizer: recogniser on the run's device.
        utterances: utterances from which the sample is taken.
    """
    torch.set_num_threads(settings.num_threads)
    steps = Trial(settings, model, planned.training_set).steps(planned.first, planned.augmentation)
    epoch = epoch_seconds(steps, planned.first, settings.num_workers)
    return Durations(epoch / planned.per_epoch, _recognition(recognizer, utterances))


def _recognition(recognizer: Recognizer, utterances: Sequence[Utterance]) -> float:
    """Return the time to recognise one second of audio."""
    stride = max(1, len(utterances) // SAMPLE)
    sample = [*utterances[::stride]][:SAMPLE]
    evaluate(recognizer, "warm-up", sample[:1])
    begun = time.perf_counter()
    evaluate(recognizer, "sample", sample)
    return (time.perf_counter() - begun) / sum(utterance.duration for utterance in sample)
