"""Optimizer steps on made-up batches: what they cost on this machine."""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.data.batch import Batch, collate
from asr.data.dataset import Augmentation, SpeechDataset
from asr.data.epoch_plan import EpochPlan
from asr.data.seeds import derive_seed
from asr.data.training_set import TrainingSet
from asr.recognition.model import Model
from asr.system.processes import peak_memory

PRECISIONS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Steps:
    """What a step costs here.

    Args:
        seconds: of passes over batches, by their padded seconds.
        reading: seconds to read and augment a second of audio.
        peak: bytes of memory at most.
        available: bytes of memory that there are.
        state: bytes of a checkpoint.
    """

    seconds: Mapping[float, float]
    reading: float
    peak: float
    available: float
    state: float

    def of(self, padded: float) -> float:
        """Estimate the seconds of a step from its padded seconds, on the line through those that were timed."""
        (short, short_time), (long, long_time) = min(self.seconds.items()), max(self.seconds.items())
        if long <= short:
            return long_time * padded / long
        slope = max(0.0, (long_time - short_time) / (long - short))
        return max(0.0, short_time + slope * (padded - short))


class Trial:
    """Optimizer steps on made-up batches of a plan, on one device; the model is of no use behind it.

    Args:
        model: to be trained.
        optimizer: of it.
        training_set: whose batches are tried.
        device: to train on.
        precision: as `trainer.precision`.
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
        self._precision = PRECISIONS.get(str(precision))
        self._noise = torch.Generator().manual_seed(derive_seed(training_set.seed, "trial"))

    def steps(self, plan: EpochPlan, augmentation: Augmentation) -> Steps:
        """Try a batch of median size and the largest ones."""
        padded = padded_seconds(plan)  # (steps, ranks)
        flat = padded.flatten()
        median = int(flat.argsort()[len(flat) // 2])
        largest = [step * padded.shape[1] + int(padded[step].argmax()) for step in plan.largest()]
        seconds: dict[float, float] = {}
        self._step(self._batch(plan, median, padded.shape[1]))  # the first is slower, and makes the optimizer's state
        for place in (median, *largest):
            took = self._step(self._batch(plan, place, padded.shape[1]))
            seconds[float(flat[place])] = max(took, seconds.get(float(flat[place]), 0.0))
        reading = self._reading(plan, median, padded.shape[1], augmentation)
        return Steps(seconds, reading, *self._memory(), state=self._state_bytes())

    def _batch(self, plan: EpochPlan, place: int, ranks: int) -> Batch:
        return self._data.made_up(plan.items(place // ranks, place % ranks), self._noise)

    def _step(self, batch: Batch) -> float:
        """Take a step; how many seconds it took."""
        batch = batch.to(self._device)
        begun = time.perf_counter()
        with self._autocast():
            encoded = self._model(batch.features, batch.feature_lengths)
            loss = self._model.head.losses(encoded, batch.tokens, batch.token_lengths)["loss"].sum()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - begun

    def _autocast(self) -> AbstractContextManager[None]:
        if self._precision is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._precision)

    def _reading(self, plan: EpochPlan, place: int, ranks: int, augmentation: Augmentation) -> float:
        """Time how long a second of audio takes from its file to the net, in one process."""
        data = self._data
        dataset = SpeechDataset(data.utterances, data.features, data.reference, augmentation, data.seed)
        items = plan.items(place // ranks, place % ranks)
        begun = time.perf_counter()
        collate([dataset[item] for item in items])
        return (time.perf_counter() - begun) / sum(data.utterances[item.position].duration for item in items)

    def _memory(self) -> tuple[float, float]:
        """Return the bytes that were used at most, and those that there are."""
        if self._device.type == "cuda":
            available = torch.cuda.get_device_properties(self._device).total_memory
            return torch.cuda.max_memory_allocated(self._device), available
        return peak_memory(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _state_bytes(self) -> float:
        tensors = [*self._model.state_dict().values()]
        for state in self._optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def padded_seconds(plan: EpochPlan) -> Tensor:
    """Return the padded seconds of each batch, (steps, ranks)."""
    return plan.plan.longest(plan.durations) * plan.plan.sizes()
