"""A function of many things, in as many processes as there are cores."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

FEW = 400  # things that are done sooner than processes are started
MOST_PROCESSES = 32  # a disk has no more to give

Given = TypeVar("Given")
Result = TypeVar("Result")


class _Calls(Dataset[Result], Generic[Given, Result]):
    def __init__(self, function: Callable[[Given], Result], things: Sequence[Given]) -> None:
        self.function, self.things = function, things

    def __len__(self) -> int:
        return len(self.things)

    def __getitem__(self, position: int) -> Result:
        return self.function(self.things[position])


def in_parallel(function: Callable[[Given], Result], things: Sequence[Given]) -> Iterator[Result]:
    """Yield the function of each thing, in order; the function logs nothing, and raises StoreError at most."""
    processes = 0 if len(things) <= FEW else min(num_cores(), MOST_PROCESSES)
    loader: DataLoader[Result] = DataLoader(
        _Calls(function, things),
        batch_size=None,
        collate_fn=_same,
        num_workers=processes,
        prefetch_factor=32 if processes else None,
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
