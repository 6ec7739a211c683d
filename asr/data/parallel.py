"""A function of many things, in as many processes as there are cores."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

MIN_PARALLEL = 400  # things: fewer are done sooner than processes are started
MAX_PROCESSES = 32  # a disk has no more to give

Given = TypeVar("Given")
Result = TypeVar("Result")


class _Calls(Dataset[Result], Generic[Given, Result]):
    def __init__(self, function: Callable[[Given], Result], things: Sequence[Given]) -> None:
        self.function, self.things = function, things

    def __len__(self) -> int:
        return len(self.things)

    def __getitem__(self, position: int) -> Result:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a process of a loader: another number may round differently
        try:
            return self.function(self.things[position])
        finally:
            torch.set_num_threads(threads)


def in_parallel(
    function: Callable[[Given], Result],
    things: Sequence[Given],
    *,
    num_processes: int | None = None,
    results_ahead: int = 32,
) -> Iterator[Result]:
    """Yield the function of each thing, in order; results do not depend on the number of processes.

    Args:
        function: logs nothing, and raises nothing but a StoreError.
        things: that it is called with.
        num_processes: 0: this process; None: one per core, or this process for at most MIN_PARALLEL things.
        results_ahead: that a process may have computed before they are asked for.
    """
    if num_processes is None:
        num_processes = 0 if len(things) <= MIN_PARALLEL else min(num_cores(), MAX_PROCESSES)
    loader: DataLoader[Result] = DataLoader(
        _Calls(function, things),
        batch_size=None,
        collate_fn=_same,
        num_workers=num_processes,
        prefetch_factor=results_ahead if num_processes else None,
        worker_init_fn=_quiet,
    )
    yield from loader


def num_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _same(result: Result) -> Result:
    return result


def _quiet(worker: int) -> None:
    logging.getLogger("asr").setLevel(logging.ERROR)
