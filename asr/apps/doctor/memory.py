"""Whether training steps fit into memory: tried before a training, forecast by method, and searched for the batch.

`try_largest` is what a training calls, `find_batch_seconds` chooses `data.batch_seconds`, and `memory_by_method`
forecasts the bytes of live tensors. These are measured on 1, 2, 4, ... utterances of the largest batch, as long as they
are expected to fit into memory, and extrapolated to the whole batch: they are linear in the number of utterances.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from asr.apps.doctor.planned import training_set_of
from asr.apps.doctor.trial import (
    MemoryLimit,
    autocast,
    device_of,
    free_bytes,
    largest_batch,
    largest_places,
    set_modes,
    step_bytes,
    take_step,
)
from asr.base.settings.conf import default_settings
from asr.base.system.seeds import derive_seed
from asr.core import build
from asr.core.data.batch import Batch
from asr.core.data.batch_plan import LESS_MEMORY
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.position import start_of_epoch
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import TrainingSet
from asr.core.data.utterances import Utterances
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.errors import InputError

CPU_FACTOR = 2.2  # peak of a process's memory / its tensors (benchmarks/README.md, "Memory of a training step")
SHARE = 0.85  # of the free memory; the rest is for what a trial does not include
SMALLER, LARGER = 0.75, 1.5  # factors from one trial to the next
MAX_TRIALS = 8
MIN_STEPS = 10  # in an epoch
MAX_SECONDS = 200.0  # with the default learning rate, which suits small batches
FULL, FROZEN_ENCODER, LORA = "full", "init.frozen=[encoder.*]", "adapter=lora"

logger = logging.getLogger(__name__)


def try_largest(
    task: Any,
    optimizer: torch.optim.Optimizer,
    largest: Callable[[], Sequence[Any]],
    autocast: Callable[[], AbstractContextManager[Any]],
    device: torch.device,
) -> None:
    """Take an optimizer step on the largest batches of a run's plan, and undo the step.

    Parameters, buffers, optimizer and random state are restored bit for bit. Each batch runs before and after an
    optimizer step, so that the measured peak also includes the optimizer's state, as in all steps after the first.

    Args:
        task: module whose `losses(batch).loss` are the losses of a batch, (B,).
        optimizer: optimizer of the task.
        largest: makes this process's part of the largest batches; all processes must make equal numbers of batches.
        autocast: returns the context of the forward pass.
        device: device of the task.
    """
    logger.info("trying the largest batches")
    # A copy on the device would distort the trial.
    weights, state = (
        tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), each.state_dict())
        for each in (task, optimizer)
    )
    fresh = not optimizer.state
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for batch in largest():
            moved = batch.to(device)
            for last in (False, True):
                with autocast():
                    loss = task.losses(moved).loss.sum()
                loss.backward()
                if not last:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    task.load_state_dict(weights)
    if fresh:
        optimizer.state.clear()
    else:
        optimizer.load_state_dict(state)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        logger.info("the largest batch fits into memory: peak %.1f GiB", peak)


# ---- the longest batch that fits


def find_batch_seconds(
    settings: RunSettings, utterances: Utterances, model: Model, counts: TokenCounts | None = None
) -> float:
    """Return the longest `data.batch_seconds` whose training steps fit into the device's free memory.

    The length of the settings is the upper bound; with `auto`, an epoch has at least MIN_STEPS steps, and with the
    default learning rate a batch has at most MAX_SECONDS. One process takes the steps, also for a run with several.

    Args:
        settings: settings of the run.
        utterances: utterances to train on.
        model: new model of the run; it is unusable afterwards.
        counts: token counts of the utterances; None: they are counted.
    """
    from asr.core.training.frozen import Frozen  # imports Lightning, which no trial in a child process needs

    if torch.distributed.is_initialized() and device_of(settings).type != "cpu":
        # The trial's batch norms would sum over all processes, which wait for this one.
        must = "data.batch_seconds must be a number if torchrun or SLURM starts the processes"
        raise InputError(f"{must}; got auto. python -m asr.plan data.batch_seconds=auto on one GPU finds the number.")
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    Frozen(model, settings.init.frozen, settings.init.frozen_steps)  # its weights have no gradients
    batches = _Batches(settings, utterances, model, counts)
    least, most = batches.bounds()
    logger.info("looking for the longest batch of %g to %g s that fits into the memory", least, most)
    return longest(batches.fit, max(least, batches.forecast(most)), least, most)


def longest(fit: Callable[[float], bool], start: float, least: float, most: float) -> float:
    """Return a length of batches that fit, in seconds; 4/3 of it does not fit, is above `most`, or trials have run out.

    Args:
        fit: tries batches of this length; it is called at most MAX_TRIALS times.
        start: length of the first trial.
        least: the shortest useful length.
        most: the greatest length.
    """
    fitting, failed, seconds = 0.0, math.inf, start
    for left in reversed(range(MAX_TRIALS)):
        if fit(seconds):
            fitting = seconds
        else:
            failed = seconds
        following = LARGER * fitting if failed == math.inf else SMALLER * failed
        seconds = min(most, max(least, round(following, 1)))
        if left == 1 and not fitting:
            seconds = least
        if not fitting < seconds < failed:
            break
    if not fitting:
        must = f"batches of {least:g} s, the length of the longest utterance, must fit into {SHARE:.0%} of the free"
        raise InputError(f"{must} memory; they do not. {LESS_MEMORY}, or take a smaller model.")
    return fitting


class _Batches:
    """The largest batches of a run, by `data.batch_seconds`; the arguments are those of `find_batch_seconds`."""

    def __init__(self, settings: RunSettings, utterances: Utterances, model: Model, counts: TokenCounts | None) -> None:
        self._settings, self._utterances, self._model, self._counts = settings, utterances, model, counts
        self._processes = settings.trainer.num_processes()[0]
        self._noise = torch.Generator().manual_seed(derive_seed(settings.seed, "memory"))
        self._limit = MemoryLimit(settings, SHARE * free_bytes(device_of(settings)))

    def bounds(self) -> tuple[float, float]:
        """Return the length of the longest utterance, and the greatest length of a batch, in seconds."""
        settings, views = self._settings, self._model.reference.views
        added = build.build_augmentation(settings.components, self._model.features.sample_rate).max_added_seconds
        training_set = self._training_set(views * (settings.data.plan.selection.max_seconds + added))
        utterance = views * (float(training_set.utterances.durations.max()) + added)
        least = math.ceil(10 * utterance) / 10
        if not settings.data.plan.batches.is_auto:
            most = settings.data.plan.batches.seconds
            return min(least, most), most
        audio = 3600 * views * sum(training_set.epoch_hours.values())
        most = audio / (MIN_STEPS * self._processes * settings.trainer.accumulate_grad_batches)
        optimizer = settings.components["optimizer"]
        if optimizer.get("lr") == default_settings("optimizer", optimizer["name"]).get("lr"):
            most = min(most, MAX_SECONDS)
        return least, max(least, math.floor(10 * most) / 10)

    def _training_set(self, batch_seconds: float) -> TrainingSet:
        settings = self._settings.with_batch_seconds(batch_seconds)
        return training_set_of(settings, self._utterances, self._model, self._counts)[0]

    def _plan(self, training_set: TrainingSet) -> EpochPlan:
        return training_set.epoch(start_of_epoch(0, self._processes))

    def forecast(self, most: float) -> float:
        """Forecast the longest batch that fits, up to `most` seconds."""
        training_set = self._training_set(most)
        items = largest_batch(self._plan(training_set), training_set)
        numbers = {min(2**power, len(items)) for power in range(len(items).bit_length() + 1)}
        batches = {number: training_set.made_up(items[:number], self._noise) for number in numbers}
        share = self._limit.run(fitting_share, self._settings, self._model, batches, self._limit.free)
        return round(most * (share or 0.0), 1)

    def fit(self, seconds: float) -> bool:
        """Return whether optimizer steps on the largest batches fit, after they were tried."""
        training_set = self._training_set(seconds)
        plan = self._plan(training_set)
        batches = [training_set.made_up(plan.items(*place), self._noise) for place in largest_places(plan)]
        fits = bool(self._limit.run(take_steps, self._settings, self._model, batches))
        logger.info("batches of %g s %s", seconds, "fit" if fits else "do not fit")
        return fits


def take_steps(settings: RunSettings, model: Model, batches: Sequence[Batch]) -> bool:
    """Take two steps on each batch; the second one also has the state of the optimizer. The result is True."""
    device = device_of(settings)
    model.to(device)
    set_modes(model)
    average = deepcopy(model) if settings.ema.decay is not None else None
    optimizer = build.build_optimizer(settings.components, model, model.depths)
    for batch in batches:
        for _ in range(2):
            take_step(model, optimizer, batch.to(device), autocast(settings))
    del average  # it takes memory up to here
    return True


def fitting_share(settings: RunSettings, model: Model, batches: Mapping[int, Batch], free: float) -> float:
    """Forecast the share of the largest batch's utterances that fits, from 0 to 1.

    Args:
        settings: settings of the run.
        model: model to train.
        batches: the first 1, 2, 4, ... and all utterances of the largest batch, by their number.
        free: bytes of memory that a step may take.
    """
    device = device_of(settings)
    bytes_of = _measure(settings, model.to(device), lambda number: batches[number].to(device))
    size, free = max(batches), for_tensors(free, device)
    least, needed = bytes_of(1), batch_bytes(bytes_of, size, free)
    return 1.0 if needed <= free else (1 + (size - 1) * (free - least) / max(needed - least, 1)) / size


# ---- the bytes of a step


def for_tensors(free: float, device: torch.device) -> float:
    """Return how many bytes tensors may have within free bytes of memory."""
    return free / CPU_FACTOR if device.type == "cpu" else free


def memory_by_method(
    settings: RunSettings, model: Model, batch_of: Callable[[int], Batch], size: int, free: float
) -> dict[str, float]:
    """Forecast the bytes of tensors in a training step, by training method (`METHODS`), on copies of a model.

    Args:
        settings: settings of the run.
        model: model to train, with or without an adapter; it is not changed.
        batch_of: makes a batch of this number of utterances of the largest batch, with the padding of the whole batch.
        size: number of utterances in the largest batch.
        free: bytes of memory that measurements may take.
    """
    needed = {}
    for name, make in METHODS.items():
        adapted = make(deepcopy(model))
        if adapted is not None:
            needed[name] = batch_bytes(_measure(settings, adapted, batch_of), size, free)
    return needed


def _measure(settings: RunSettings, model: Model, batch_of: Callable[[int], Batch]) -> Callable[[int], float]:
    """Return a function that measures the bytes of a step on this number of utterances of the largest batch."""
    state = build.optimizer_bytes(settings.components, model, model.depths)
    average = settings.ema.decay is not None

    def measure(number: int) -> float:
        needed = step_bytes(model, batch_of(number), partial(autocast, settings), average, state)
        model.zero_grad(set_to_none=True)
        return needed

    return measure


def batch_bytes(measure: Callable[[int], float], size: int, free: float) -> float:
    """Return the bytes of a step on a batch of `size` utterances: measured if they fit into `free`, or extrapolated.

    While gradients of the weights take more memory than activations, the first measurements are equal, so an
    extrapolation is a lower bound; it is always above `free`.

    Args:
        measure: measures the bytes of a step on a batch of this number of utterances.
        size: number of utterances in the batch, at least 1.
        free: bytes that a measurement of more than two utterances may take.
    """
    number, needed, per_utterance = 1, measure(1), 0.0
    while number < size:
        following = min(2 * number, size)
        if number > 1 and needed + per_utterance * (following - number) > free:
            return needed + per_utterance * (size - number)
        before, needed = needed, measure(following)
        per_utterance, number = (needed - before) / (following - number), following
    return needed


def _full(model: Model) -> Model:
    return model.requires_grad_(True)


def _frozen_encoder(model: Model) -> Model:
    model.requires_grad_(True)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith("encoder."))
    return model


def _lora(model: Model) -> Model | None:
    """Insert the adapter of conf/adapter/lora.yaml if the model has none; return None if the adapter fits no layer."""
    if all(weight.requires_grad for weight in model.parameters()):
        try:
            build.build_adapter(default_settings("adapter", "lora")).insert(model)
        except InputError:
            return None
    return model


METHODS: dict[str, Callable[[Model], Model | None]] = {FULL: _full, FROZEN_ENCODER: _frozen_encoder, LORA: _lora}
