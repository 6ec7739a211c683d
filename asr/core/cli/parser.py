"""The parser of the commands' options, whose error messages are one line without the usage."""

import argparse
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from asr.base.settings.plugins import use
from asr.base.storage.location import is_url
from asr.errors import InputError

UNKNOWN = re.compile(r"unrecognized arguments: (?:.* )?(--[^\s=]+)")


def local_path(text: str) -> Path:
    """Convert an argument to a path; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, such as . for the current folder; got ''")
    return Path(text)


def path_or_url(text: str) -> Path | str:
    """Convert an argument to a path; a URL stays a string."""
    return text if is_url(text) else local_path(text)


class CommandParser(argparse.ArgumentParser):
    """A parser whose error messages are one line that suggests a similar option; only --help prints the usage.

    Arguments with `type=Path` must not be empty.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", Path, local_path)

    def error(self, message: str) -> NoReturn:
        """Print an error and end with status 2."""
        unknown = UNKNOWN.match(message)
        similar = get_close_matches(unknown[1], self._option_string_actions, n=1, cutoff=0.8) if unknown else []
        hint = f"Did you mean {similar[0]}?" if similar else f"{self.prog} --help lists the options."
        self.exit(2, f"error: {message.rstrip('.')}. {hint}\n")

    def add_plugins(self) -> None:
        """Add the option that names plugins; they are in use as soon as the option is parsed."""
        self.add_argument(
            "--plugin",
            action=_UsePlugin,
            metavar="PACKAGE",
            default=[],
            help="package outside of asr with components of the model, such as mylab.speech; its code runs; repeatable",
        )


class _UsePlugin(argparse.Action):
    """Use the components of a package that the command names."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _: Any = None
    ) -> None:
        """Find the package; refuse the command if this fails."""
        try:
            use([value], "--plugin")
        except InputError as error:
            parser.exit(1, f"error: {error}\n")
        namespace.plugin = [*namespace.plugin, value]
