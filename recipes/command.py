"""Run a recipe as a command-line program: parse its options and report its errors."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from asr.base.system.processes import INTERRUPTED
from asr.base.text.printable import printable
from asr.core.cli.parser import local_path
from asr.errors import InputError

READABLE = "--corpus-dir must be readable, --output-dir writable, with room left"
ROOM = "--output-dir must be writable, with room left"
GO_ON = "; run the same command again to resume."

AddOption = Callable[..., argparse.Action]


def run_recipe(
    module: str,
    description: str | None,
    add_options: Callable[[AddOption], None],
    work: Callable[[argparse.Namespace], int | None],
    arguments: list[str] | None,
    *,
    must: str = "",
    interrupted: str = "",
) -> int:
    """Parse the options of `python -m MODULE` and call `work`; user errors, disk errors and Ctrl-C each print one line.

    Args:
        module: name of the recipe's module.
        description: docstring of the module, printed unchanged by --help.
        add_options: called with the parser's `add_argument`; adds the recipe's options.
        work: called with the parsed options; returns the exit status, None for 0.
        arguments: command-line arguments; None: the arguments of the process.
        must: text that states what must hold for the folders, such as ROOM; the message of a disk error begins with it.
        interrupted: advice printed after Ctrl-C.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=(description or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.register("type", Path, local_path)
    add_options(parser.add_argument)
    options = parser.parse_args(arguments)
    try:
        return work(options) or 0
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
