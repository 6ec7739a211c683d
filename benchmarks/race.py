"""Times contenders in alternating turns, so that a change in the machine's speed affects all of them."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

Contender = Callable[[], object]
Made = TypeVar("Made")


class Turn(NamedTuple):
    """Wall-clock seconds of one turn, and CPU seconds of this process and its finished child processes."""

    seconds: float
    cpu_seconds: float


def enter(makers: Mapping[str, Callable[[], Made]], expected: tuple[type[Exception], ...] = ()) -> dict[str, Made]:
    """Make the contenders; print and leave out each contender that raises ImportError or an `expected` exception."""
    contenders: dict[str, Made] = {}
    failures: tuple[type[Exception], ...] = (ImportError, *expected)
    for name, make in makers.items():
        try:
            contenders[name] = make()
        except failures as error:
            print(f"{name}: left out: {(str(error) or type(error).__name__).splitlines()[0]}", flush=True)
    return contenders


def race(
    contenders: Mapping[str, Contender],
    *,
    turns: int,
    warm_up: int = 1,
    times: int = 1,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, Turn]:
    """Run the contenders in rounds of one turn each; return the median turn of each contender.

    Args:
        turns: number of timed rounds.
        warm_up: number of untimed rounds before the timed ones.
        times: number of runs of a contender in a turn, which are averaged.
        synchronize: waits until the device has finished all work queued so far.
    """
    timed_turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for round_number in range(warm_up + turns):
        for name, contender in contenders.items():
            synchronize()
            start, cpu_start = time.perf_counter(), cpu_seconds()
            for _ in range(times):
                contender()
            synchronize()
            turn = Turn((time.perf_counter() - start) / times, (cpu_seconds() - cpu_start) / times)
            if round_number >= warm_up:
                timed_turns[name].append(turn)
    return {
        name: Turn(*map(statistics.median, zip(*contender_turns, strict=True)))
        for name, contender_turns in timed_turns.items()
    }


def cpu_seconds() -> float:
    """Return the CPU seconds used so far by this process and its finished child processes."""
    usages = [resource.getrusage(processes) for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
