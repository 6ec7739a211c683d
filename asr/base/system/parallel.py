"""A parallel map over the cores of the machine."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

from asr.base.system.processes import can_fork, start_method, torch_threads

MIN_PARALLEL = 400  # with fewer arguments, starting processes takes longer than the calls
MAX_PROCESSES = 32  # more processes would not read any faster from a disk

Given = TypeVar("Given")
Result = TypeVar("Result")


class _Calls(Dataset[Result], Generic[Given, Result]):
    def __init__(self, function: Callable[[Given], Result], things: Sequence[Given]) -> None:
        self.function, self.things = function, things

    def __len__(self) -> int:
        return len(self.things)

    def __getitem__(self, index: int) -> Result:
        with torch_threads(1):  # as in a DataLoader's worker; rounding depends on the number of threads
            return self.function(self.things[index])


def in_parallel(
    function: Callable[[Given], Result],
    things: Sequence[Given],
    *,
    num_processes: int | None = None,
    results_ahead: int = 32,
) -> Iterator[Result]:
    """Yield the results of a function, computed by several processes, in the order of the arguments.

    Args:
        function: a function that logs nothing and raises only StoreErrors.
        things: the arguments, one per call.
        num_processes: number of processes to start; 0: this process calls the function. None: one process per core, or
            0 if there are at most MIN_PARALLEL arguments, or `num_cores` is 1.
        results_ahead: maximum number of results that a process computes in advance.
    """
    if num_processes is None:
        is_worth_it = len(things) > MIN_PARALLEL and num_cores() > 1
        num_processes = min(num_cores(), MAX_PROCESSES) if is_worth_it else 0
    loader: DataLoader[Result] = DataLoader(
        _Calls(function, things),
        batch_size=None,
        collate_fn=_same,
        num_workers=num_processes,
        multiprocessing_context=start_method(num_processes),
        prefetch_factor=results_ahead if num_processes else None,
        worker_init_fn=_quiet,
    )
    yield from loader


def num_cores() -> int:
    """Return the number of cores that this process may use; 1 where workers cannot be forked."""
    if not can_fork():
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _same(result: Result) -> Result:
    return result


def _quiet(worker: int) -> None:
    logging.getLogger("asr").setLevel(logging.ERROR)
