"""A stranger's text on one line: what comes out of manifests and file names may hold a terminal's commands."""

import logging
from collections.abc import Sequence

NAMED = 5  # of a longer list, before the others are counted


def printable(text: str) -> str:
    """A text on one line, whatever a name in it holds: line breaks, bytes that are not UTF-8, a terminal's commands."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def listed(names: Sequence[str]) -> str:
    """Name the first of many, and say how many more there are."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


class LineFormatter(logging.Formatter):
    """Format what is logged, each record as one printable line; only a traceback, which is ours, has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Logging's hook: the line, before a traceback is added."""
        return printable(super().formatMessage(record))
