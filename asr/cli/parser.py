"""The parser of the commands' options, whose error messages are one line without the usage."""

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

UNKNOWN = re.compile(r"unrecognized arguments: (?:.* )?(--[^\s=]+)")


class CommandParser(argparse.ArgumentParser):
    """A parser whose error messages are one line that suggests a similar option; only --help prints the usage."""

    def error(self, message: str) -> NoReturn:
        """Print an error and end with status 2."""
        unknown = UNKNOWN.match(message)
        similar = get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else []
        hint = f"Did you mean {similar[0]}?" if similar else f"{self.prog} --help lists the options."
        self.exit(2, f"error: {message.rstrip('.')}. {hint}\n")
