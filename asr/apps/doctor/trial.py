"""Measurement of the time and memory of optimizer steps on this machine, with synthetic batches."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.base.system.processes import free_memory, peak_memory
from asr.core.data.batch import Batch, collate
from asr.core.data.dataset import Augmentation, Item, SpeechDataset
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.seeds import derive_seed
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings

PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Steps:
    """Measured time and memory of training on this machine.

    Args:
        seconds: maps the duration of a batch's audio, including padding, to the time of a step; both are in seconds.
        reading: time to read and augment one second of audio, in seconds.
        peak: largest number of bytes in use at the same time.
        available: bytes of the device's memory.
    """

    seconds: Mapping[float, float]
    reading: float
    peak: float
    available: float

    def of(self, padded: float) -> float:
        """Estimate the time of a step in seconds, on the line through the smallest and the largest measured step.

        Args:
            padded: audio of the batch with padding, in seconds.
        """
        (short, short_time), (long, long_time) = min(self.seconds.items()), max(self.seconds.items())
        if long <= short:
            return long_time * padded / long
        slope = max(0.0, (long_time - short_time) / (long - short))
        return max(0.0, short_time + slope * (padded - short))


class Trial:
    """Takes optimizer steps on one device with synthetic batches; the model is unusable afterwards.

    Args:
        model: model to train.
        optimizer: optimizer of the model.
        training_set: source of the batches.
        device: device to train on.
        precision: `trainer.precision`.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        training_set: TrainingSet,
        device: torch.device,
        precision: int | str,
    ) -> None:
        self._model, self._optimizer, self._data, self._device = model, optimizer, training_set, device
        self._precision = precision
        self._noise = torch.Generator().manual_seed(derive_seed(training_set.seed, "trial"))

    def steps(self, plan: EpochPlan, augmentation: Augmentation) -> Steps:
        """Measure steps with a batch of median size and with the largest batches."""
        padded = padded_seconds(plan)  # (steps, ranks)
        flat = padded.flatten()
        median = int(flat.argsort()[len(flat) // 2])
        largest = [step * padded.shape[1] + int(padded[step].argmax()) for step in plan.largest()]
        seconds: dict[float, float] = {}
        self._step(self._batch(plan, median, padded.shape[1]))  # warm-up: the first step creates the optimizer's state
        for index in (median, *largest):
            took = self._step(self._batch(plan, index, padded.shape[1]))
            seconds[float(flat[index])] = max(took, seconds.get(float(flat[index]), 0.0))
        reading = self._reading(plan, median, padded.shape[1], augmentation)
        return Steps(seconds, reading, *self._memory())

    def _batch(self, plan: EpochPlan, index: int, ranks: int) -> Batch:
        return self._data.made_up(plan.items(index // ranks, index % ranks), self._noise)

    def _step(self, batch: Batch) -> float:
        """Take a step, and return its duration in seconds."""
        batch = batch.to(self._device)
        begun = time.perf_counter()
        take_step(self._model, self._optimizer, batch, self.autocast())
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - begun

    def made_up(self, items: Sequence[Item]) -> Batch:
        """Make a synthetic batch with the sizes of utterances, on the device."""
        return self._data.made_up(items, self._noise).to(self._device)

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context manager that runs the forward pass in the precision of training."""
        return autocast(self._device, self._precision)

    def _reading(self, plan: EpochPlan, index: int, ranks: int, augmentation: Augmentation) -> float:
        """Return the time, in seconds, to read, augment and collate one second of audio in one process."""
        data = self._data
        dataset = SpeechDataset(data.utterances, data.features, data.reference, augmentation, data.seed)
        items = plan.items(index // ranks, index % ranks)
        begun = time.perf_counter()
        collate([dataset[item] for item in items])
        return (time.perf_counter() - begun) / sum(data.utterances[item.row].duration for item in items)

    def _memory(self) -> tuple[float, float]:
        """Return the largest number of bytes in use, and the bytes of the device's memory."""
        if self._device.type == "cuda":
            available = torch.cuda.get_device_properties(self._device).total_memory
            return torch.cuda.max_memory_allocated(self._device), available
        return peak_memory(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def take_step(
    model: Model, optimizer: torch.optim.Optimizer, batch: Batch, autocast: AbstractContextManager[None]
) -> None:
    """Take an optimizer step on a batch; the forward pass runs in the context `autocast`."""
    with autocast:
        loss = model.head.losses(model.encode(batch), batch.targets)["loss"].sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def largest_batch(plan: EpochPlan, training_set: TrainingSet) -> list[Item]:
    """Return the utterances of the largest planned batch: the longest, the one with most text, the others."""
    padded = padded_seconds(plan)
    step, rank = divmod(int(padded.flatten().argmax()), padded.shape[1])
    items = plan.items(step, rank)
    items.sort(key=training_set.num_frames, reverse=True)
    longest_text = max(items, key=lambda item: len(training_set.utterances[item.row].text))
    return [*dict.fromkeys((items[0], longest_text, *items))]


def free_bytes(device: torch.device) -> float:
    """Return the bytes of a device's memory that are free."""
    return float(torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory())


def device_of(settings: RunSettings) -> torch.device:
    """Return this machine's GPU if the run would use one, else the CPU."""
    uses_gpu = settings.trainer.accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if uses_gpu else "cpu")


def autocast(device: torch.device, precision: int | str) -> AbstractContextManager[None]:
    """Return a context manager that runs the forward pass in the precision of training (`trainer.precision`)."""
    dtype = PRECISIONS.get(str(precision))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def padded_seconds(plan: EpochPlan) -> Tensor:
    """Return the seconds of audio in each batch, including padding; the shape is (steps, ranks)."""
    return plan.plan.longest(plan.durations) * plan.plan.sizes()
