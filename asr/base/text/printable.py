"""Print untrusted text on one line: manifests and file names may contain terminal control sequences."""

import logging
from collections.abc import Sequence

NAMED = 5  # number of printed names of a longer list; further names are only counted


def printable(text: str) -> str:
    """Return a text on one line, with line breaks, invalid UTF-8 and control characters escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def listed(names: Sequence[str]) -> str:
    """List the first NAMED names, and the number of further names."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


class LineFormatter(logging.Formatter):
    """Format each log record as one printable line; only tracebacks have more lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the line; logging appends a traceback afterwards."""
        return printable(super().formatMessage(record))
