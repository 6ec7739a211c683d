"""Contenders take turns at the same work, so that a machine that slows down slows all of them."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

Contender = Callable[[], object]
Entered = TypeVar("Entered")


class Turn(NamedTuple):
    """What one turn took: seconds by the clock, and on any core, of this process and of those that it waited for."""

    seconds: float
    cpu_seconds: float


def enter(
    makers: Mapping[str, Callable[[], Entered]], expected: tuple[type[Exception], ...] = ()
) -> dict[str, Entered]:
    """Make the contenders; one whose package is absent, or that raises what is `expected`, is named and left out."""
    made: dict[str, Entered] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ImportError, *expected) as error:
            print(f"{name}: left out: {(str(error) or type(error).__name__).splitlines()[0]}", flush=True)
    return made


def race(
    contenders: Mapping[str, Contender],
    *,
    turns: int,
    warm_up: int = 1,
    times: int = 1,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, Turn]:
    """Let each contender take its turn, round after round; return the median of each one's turns.

    Args:
        turns: counted rounds.
        warm_up: rounds before them that are not.
        times: how often a contender runs in a turn; the mean counts.
        synchronize: waits until a device has done all that it was given.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(warm_up + turns):
        for name, contender in contenders.items():
            synchronize()
            began, cpu_began = time.perf_counter(), cpu_seconds()
            for _ in range(times):
                contender()
            synchronize()
            turn = Turn((time.perf_counter() - began) / times, (cpu_seconds() - cpu_began) / times)
            if number >= warm_up:
                taken[name].append(turn)
    return {name: Turn(*map(statistics.median, zip(*held, strict=True))) for name, held in taken.items()}


def cpu_seconds() -> float:
    """Return the seconds that this process, and those of its own that have ended, have computed for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
