"""Run commands in a process that cannot import a package: python -m tests.refusing PACKAGE COMMAND...

Each COMMAND is a JSON list, the command's module and its arguments. The last line of the output is the list of their
statuses.
"""

import importlib.abc
import json
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Refusal(importlib.abc.MetaPathFinder):
    """Behave as if a package were not installed.

    Args:
        package: dotted name of the package.
    """

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse the package and all that is in it; leave other modules to the next finder."""
        if f"{fullname}.".startswith(f"{self.package}."):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def status(command: list[str]) -> object:
    """Run a command; return its exit status."""
    sys.argv = command
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code or 0
    return 0


if __name__ == "__main__":
    sys.meta_path.insert(0, Refusal(sys.argv[1]))
    print(json.dumps([status(json.loads(command)) for command in sys.argv[2:]]))
