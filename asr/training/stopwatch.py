"""A stopwatch that sums intervals."""

import time
from types import TracebackType


class Stopwatch:
    """Sum the wall-clock seconds spent inside `with stopwatch:`."""

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
        """Return the sum since the last call, and reset it."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
