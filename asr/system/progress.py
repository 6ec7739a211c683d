"""How far a long computation is, in the log of a command that has no progress bar."""

import logging
import time

LOG_SECONDS = 10.0  # between two lines


class ProgressLog:
    """Log a line now and then: nothing of what takes less than LOG_SECONDS.

    Args:
        logger: to log with.
        message: of each line, in which %s is replaced by the number that is done.
    """

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger, self._message = logger, message
        self._logged = time.monotonic()

    def update(self, done: int) -> None:
        """Log that this number is done, unless the last line is recent."""
        if time.monotonic() - self._logged > LOG_SECONDS:
            self._logged = time.monotonic()
            self._logger.info(self._message, f"{done:,}")
