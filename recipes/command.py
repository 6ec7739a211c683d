"""How a recipe runs as a program: its parser, and how errors end it."""

import argparse
import sys
from collections.abc import Callable

from asr.errors import InputError
from asr.system.processes import INTERRUPTED
from asr.text.printable import printable

READABLE = "--corpus-dir must be readable, --output-dir writable, with room left"
ROOM = "--output-dir must be writable, with room left"


def command_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Make the parser of `python -m MODULE`; the description keeps its lines."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(work: Callable[[], int | None], must: str = "", interrupted: str = "") -> int:
    """Do the work of a recipe; an error of the user, of the disk, or Ctrl-C is one line.

    Args:
        work: returns the exit status; None is 0.
        must: what must hold for files to be read and written, for the error where they cannot be.
        interrupted: what to do after Ctrl-C.

    Returns:
        The exit status.
    """
    try:
        return work() or 0
    except InputError as error:
        complain(str(error))
        return 1
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        complain(f"{must}; {reason}." if must else f"{reason}.")
        return 1
    except KeyboardInterrupt:
        print(f"interrupted{interrupted}", file=sys.stderr)
        return INTERRUPTED


def complain(message: str) -> None:
    """Print an error to stderr."""
    print(f"error: {printable(message)}", file=sys.stderr)
