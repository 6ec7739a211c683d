"""The largest batch whose training step is forecast to fit into the free memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from asr import build
from asr.data.batch_plan import LESS_MEMORY
from asr.data.manifest import Utterance
from asr.diagnosis.forecast import CPU_FACTOR, GIGABYTE
from asr.diagnosis.planned import planned
from asr.diagnosis.training_memory import batch_bytes, step_bytes
from asr.diagnosis.trial import Trial, device_of
from asr.errors import InputError
from asr.recognition.model import Model
from asr.run.settings import RunSettings

SHARE = 0.85  # of the free memory; the rest is for what a forecast does not include
SMALLER = 0.75  # a batch that does not fit is shortened by a quarter
MAX_TRIALS = 8


def fitting_batch_seconds(settings: RunSettings, utterances: Sequence[Utterance], model: Model) -> float:
    """Return `data.batch_seconds`, lowered until the largest batch is forecast to fit into the device's memory.

    Args:
        settings: settings of the run.
        utterances: utterances to train on.
        model: model of the run; it is moved to the run's device.

    Raises:
        InputError: not even a batch of the longest utterance fits.
    """
    longest = min(settings.data.plan.selection.max_seconds, max(utterance.duration for utterance in utterances))

    def excess(batch_seconds: float) -> float:
        batches = replace(settings.data.plan.batches, batch_seconds=batch_seconds)
        plan_settings = replace(settings.data.plan, batches=batches)
        return memory_excess(replace(settings, data=replace(settings.data, plan=plan_settings)), utterances, model)

    return largest(excess, settings.data.plan.batches.batch_seconds, longest)


def largest(excess: Callable[[float], float], batch_seconds: float, least: float) -> float:
    """Return the first of `batch_seconds`, 3/4 of it, ... whose excess is not positive.

    Args:
        excess: bytes by which a step with a batch of this length exceeds the memory.
        batch_seconds: the longest batch.
        least: the shortest useful batch.

    Raises:
        InputError: there is no such length.
    """
    lengths = [round(SMALLER**number * batch_seconds, 1) for number in range(MAX_TRIALS - 1)]
    for length in [*(length for length in lengths if length > least), min(least, batch_seconds)]:
        over = excess(length)
        if over <= 0:
            return length
    must = f"a batch of {length:g} s must fit into the free memory; it exceeds it by {over / GIGABYTE:.1f} GB"
    raise InputError(f"{must}. {LESS_MEMORY}, or take a smaller model.")


def memory_excess(settings: RunSettings, utterances: Sequence[Utterance], model: Model) -> float:
    """Return the bytes by which a step with the largest batch is forecast to exceed the memory that it may take."""
    plan, device = planned(settings, utterances, model), device_of(settings)
    model.to(device).train()
    optimizer = build.build_optimizer(settings.components, model.named_parameters())
    trial = Trial(model, optimizer, plan.training_set, device, settings.trainer.precision)
    items = trial.largest(plan.first)
    free = SHARE * trial.free() / (CPU_FACTOR if device.type == "cpu" else 1)
    average = settings.ema.decay is not None

    def measure(number: int) -> float:
        needed = step_bytes(model, trial.made_up(items[:number]), trial.autocast, average)
        model.zero_grad(set_to_none=True)
        return needed

    return batch_bytes(measure, len(items), free) - free
