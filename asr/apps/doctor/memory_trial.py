"""Whether training steps fit into the memory: forecast and tried. On a CPU this happens in child processes."""

import gc
import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from asr.apps.doctor.training_memory import batch_bytes, set_modes, step_bytes
from asr.apps.doctor.trial import autocast, take_step
from asr.base.settings.plugins import use
from asr.base.system.processes import die_with_parent, keep_memory, limit_memory
from asr.core import build
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from asr.errors import InputError, is_out_of_memory

Result = TypeVar("Result")

CPU_FACTOR = (
    2.2  # maximum of a process's memory / its tensors on a CPU (benchmarks/README.md, "Memory of a training step")
)
# Linux kills a process that takes too much memory; a thread without memory aborts it.
OUT_OF_MEMORY = (-signal.SIGKILL, -signal.SIGABRT)


@dataclass(frozen=True)
class MemoryTrial:
    """Trains a model on synthetic batches, with a limit on the memory.

    Args:
        model: model to train; it is unusable afterwards.
        device: device to train on.
        free: bytes of the device's memory that a step may take.
        components: components of the run, with its optimizer.
        plugins: packages outside of asr that contain components.
        precision: `trainer.precision`.
        average: whether a moving average of the weights is stored.
        num_threads: number of threads on a CPU.
    """

    model: Model
    device: torch.device
    free: float
    components: Mapping[str, Any]
    plugins: Sequence[str]
    precision: int | str
    average: bool
    num_threads: int

    def fits(self, batches: Sequence[Batch]) -> bool:
        """Return whether two steps on each batch fit; the second one also has the state of the optimizer."""
        return bool(self._within_memory(partial(self._take_steps, batches)))

    def fitting_share(self, batches: Mapping[int, Batch]) -> float:
        """Forecast the share of the largest batch's utterances that fits, from 0 to 1.

        Args:
            batches: the first 1, 2, 4, ... and all utterances of the largest batch, by their number.
        """
        return self._within_memory(partial(self._forecast, batches)) or 0.0

    def _take_steps(self, batches: Sequence[Batch]) -> bool:
        model = self.model.to(self.device)
        set_modes(model)
        average = deepcopy(model) if self.average else None
        optimizer = build.build_optimizer(self.components, model, model.depths)
        for batch in batches:
            for _ in range(2):
                take_step(model, optimizer, batch.to(self.device), autocast(self.device, self.precision))
        del average  # it takes memory up to here
        return True

    def _forecast(self, batches: Mapping[int, Batch]) -> float:
        model = self.model.to(self.device)
        free = self.free / (CPU_FACTOR if self.device.type == "cpu" else 1)
        state = build.optimizer_bytes(self.components, model, model.depths)

        def measure(number: int) -> float:
            batch = batches[number].to(self.device)
            needed = step_bytes(model, batch, partial(autocast, self.device, self.precision), self.average, state)
            model.zero_grad(set_to_none=True)
            return needed

        least, needed = measure(1), batch_bytes(measure, max(batches), free)
        if needed <= free:
            return 1.0
        return (1 + (max(batches) - 1) * (free - least) / max(needed - least, 1)) / max(batches)

    @cached_property
    def _limit(self) -> float:
        """Bytes of a GPU that this process may reserve; later, its cache contains the memory of earlier trials."""
        return torch.cuda.memory_reserved() + self.free

    def _within_memory(self, run: Callable[[], Result]) -> Result | None:
        """Return the result of a function; None if it does not fit into the memory."""
        if self.device.type == "cpu":
            return self._in_child(run)
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self._limit / total))
        try:
            return unless_out_of_memory(run)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def _in_child(self, run: Callable[[], Result]) -> Result | None:
        """Run a function in a child process, because Linux may kill the process."""
        pickled = unless_out_of_memory(lambda: pickle.dumps(run))
        if pickled is None:
            return None
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        settings = os.getpid(), self.plugins, self.num_threads, self.free
        child = context.Process(target=_child, args=(pickled, sender, *settings), daemon=True)
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
    run: bytes, sender: Connection, parent_id: int, plugins: Sequence[str], num_threads: int, free: float
) -> None:
    die_with_parent(parent_id)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports Ctrl-C, and kills this process
    use(plugins)
    keep_memory()
    torch.set_num_threads(num_threads)
    torch.ones(2**20).sum()  # starts the threads; without memory for a thread, OpenMP ends the process
    importlib.import_module("torch._dynamo")  # else the first optimizer imports it; without memory, with any error
    limit_memory(free)
    sender.send(unless_out_of_memory(lambda: pickle.loads(run)()))


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
