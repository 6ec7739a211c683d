"""Seconds spent in certain places, added up until somebody asks."""

import time
from types import TracebackType


class Stopwatch:
    """Add up the wall seconds that pass inside of `with stopwatch:`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds += time.monotonic() - self._started

    def take(self) -> float:
        """Return the seconds since the last call, and begin at zero again."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
