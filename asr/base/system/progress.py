"""Progress of a long computation in the log, for commands without a progress bar."""

import logging
import time

LOG_SECONDS = 10.0  # time between two lines


class ProgressLog:
    """Log a line every LOG_SECONDS; shorter computations log nothing.

    Args:
        logger: logger of the lines.
        message: message of each line; %s is replaced by the completed number.
    """

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger, self._message = logger, message
        self._logged = time.monotonic()

    def update(self, done: int) -> None:
        """Log the completed number, unless the last line is recent."""
        if time.monotonic() - self._logged > LOG_SECONDS:
            self._logged = time.monotonic()
            self._logger.info(self._message, f"{done:,}")
