"""Training steps on this machine with synthetic batches: their time, their tensors, and a limit on their memory.

With a limit, steps on a CPU happen in child processes, because Linux kills a process that takes too much memory.
"""

import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr.base.settings.plugins import use
from asr.base.system.processes import die_with_parent, free_memory, keep_memory, limit_memory, peak_memory
from asr.base.system.seeds import derive_seed
from asr.core import build
from asr.core.data.batch import Batch, collate
from asr.core.data.dataset import Augmentation, Item, SpeechDataset
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.run.settings import RunSettings
from asr.errors import InputError, is_out_of_memory

Result = TypeVar("Result")

# Linux kills a process that takes too much memory; a thread without memory aborts it.
OUT_OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)
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
        settings: settings of the run.
        model: model to train.
        training_set: source of the batches.
    """

    def __init__(self, settings: RunSettings, model: Model, training_set: TrainingSet) -> None:
        self._settings, self._data, self._device = settings, training_set, device_of(settings)
        self._model = model.to(self._device).train()
        self._optimizer = build.build_optimizer(settings.components, model, model.depths)
        self._noise = torch.Generator().manual_seed(derive_seed(training_set.seed, "trial"))

    def steps(self, plan: EpochPlan, augmentation: Augmentation) -> Steps:
        """Measure steps with a batch of median size and with the largest batches."""
        padded = padded_seconds(plan)  # (steps, ranks)
        median = divmod(int(padded.flatten().argsort()[padded.numel() // 2]), padded.shape[1])
        seconds: dict[float, float] = {}
        self._step(self.made_up(plan.items(*median)))  # warm-up: the first step creates the optimizer's state
        for place in (median, *largest_places(plan)):
            took = self._step(self.made_up(plan.items(*place)))
            length = float(padded[place])
            seconds[length] = max(took, seconds.get(length, 0.0))
        return Steps(seconds, self._reading(plan.items(*median), augmentation), *self._memory())

    def _step(self, batch: Batch) -> float:
        """Take a step, and return its duration in seconds."""
        begun = time.perf_counter()
        take_step(self._model, self._optimizer, batch, autocast(self._settings))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - begun

    def made_up(self, items: Sequence[Item]) -> Batch:
        """Make a synthetic batch with the sizes of utterances, on the device."""
        return self._data.made_up(items, self._noise).to(self._device)

    def _reading(self, items: Sequence[Item], augmentation: Augmentation) -> float:
        """Return the time, in seconds, to read, augment and collate one second of audio in one process."""
        data = self._data
        dataset = SpeechDataset(data.utterances, data.features, data.reference, augmentation, data.seed)
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


def step_bytes(
    model: Model,
    batch: Batch,
    autocast: Callable[[], AbstractContextManager[None]],
    average: bool,
    optimizer_bytes: float,
) -> float:
    """Measure the bytes of tensors in a training step: weights, average, gradients and activations.

    `optimizer_bytes`, the bytes of the optimizer's state, are added.
    """
    weights = weight_bytes(model)
    set_modes(model)
    state = [*model.parameters(), *model.buffers()]
    with PeakMemory([*state, batch.features, batch.feature_lengths, batch.tokens, batch.token_lengths]) as memory:
        with autocast():
            encoded = model.encode(batch)
            loss = model.head.losses(encoded, batch.targets)["loss"].sum()
        loss.backward()
    return weights * (1 + average) + optimizer_bytes + memory.peak


def set_modes(model: nn.Module) -> None:
    """Set modules without trained weights to eval mode, and all others to training mode, as a training does."""
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        module.training = not own or any(weight.requires_grad for weight in own)


def weight_bytes(model: nn.Module) -> float:
    """Count the bytes of a model's parameters and buffers."""
    return float(sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()))


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


def autocast(settings: RunSettings) -> AbstractContextManager[None]:
    """Return a context manager that runs the forward pass in the precision of training (`trainer.precision`)."""
    dtype = PRECISIONS.get(str(settings.trainer.precision))
    return nullcontext() if dtype is None else torch.autocast(device_of(settings).type, dtype)


def padded_seconds(plan: EpochPlan) -> Tensor:
    """Return the seconds of audio in each batch, including padding; the shape is (steps, ranks)."""
    return plan.plan.longest(plan.durations) * plan.plan.sizes()


def largest_places(plan: EpochPlan) -> list[tuple[int, int]]:
    """Return the step and the rank of the largest batch in each of the largest steps."""
    padded = padded_seconds(plan)
    return [(step, int(padded[step].argmax())) for step in plan.largest()]


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of live tensors that operations create while the context is active; `peak` is the maximum.

    The temporary memory of operations, and the memory that an allocator reserves, are not counted.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet(tensor.untyped_storage() for tensor in known)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the bytes of its results; torch calls this for each operation."""
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._live -= size


@dataclass(frozen=True)
class MemoryLimit:
    """Runs functions with a limit on the memory of a run's device; on a CPU, each in a child process.

    Args:
        settings: settings of the run.
        free: bytes of the device's memory that a function may take.
    """

    settings: RunSettings
    free: float

    @cached_property
    def _reserved(self) -> float:
        """Bytes of a GPU that this process may reserve; later, its cache contains the memory of earlier trials."""
        return torch.cuda.memory_reserved() + self.free

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result | None:
        """Return the result of a module's function; None if it does not fit into the memory."""
        device = device_of(self.settings)
        if device.type == "cpu":
            return self._in_child(function, arguments)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self._reserved / total))
        try:
            return unless_out_of_memory(lambda: function(*arguments))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def _in_child(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result | None:
        """Run a function in a child process, because Linux may kill the process."""
        pickled = unless_out_of_memory(lambda: pickle.dumps(arguments))
        if pickled is None:
            return None
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        settings = os.getpid(), self.settings.plugins, self.settings.num_threads, self.free
        child = context.Process(target=_child, args=(function, pickled, sender, *settings), daemon=True)
        child.start()
        sender.close()
        try:
            child.join()
        finally:
            child.kill()
        if child.exitcode == 0:
            result: Result | None = receiver.recv()
            return result
        if child.exitcode in OUT_OF_MEMORY:
            return None
        must = "the process that tries a batch must end by itself"
        raise InputError(f"{must}; it ended with status {child.exitcode}, see above. Give data.batch_seconds a number.")


def _child(
    function: Callable[..., Any],
    arguments: bytes,
    sender: Connection,
    parent_id: int,
    plugins: Sequence[str],
    num_threads: int,
    free: float,
) -> None:
    die_with_parent(parent_id)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports Ctrl-C, and kills this process
    use(plugins)
    keep_memory()
    torch.set_num_threads(num_threads)
    torch.ones(2**20).sum()  # starts the threads; without memory for a thread, OpenMP ends the process
    importlib.import_module("torch._dynamo")  # else the first optimizer imports it; without memory, with any error
    limit_memory(free)
    sender.send(unless_out_of_memory(lambda: function(*pickle.loads(arguments))))


def unless_out_of_memory(run: Callable[[], Result]) -> Result | None:
    """Return the result of a function; None if it runs out of memory, after its memory is freed."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Within `except`, the traceback still refers to the tensors of the failed step.
    gc.collect()
    torch.cuda.empty_cache()
    return None
