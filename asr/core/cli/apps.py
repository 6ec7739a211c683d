"""What an app adds to a command of core, which works without the folder asr/apps."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def has_app(name: str) -> bool:
    """Return whether the folder asr/apps/<name> is there."""
    try:
        return find_spec(f"asr.apps.{name}") is not None
    except ModuleNotFoundError:  # there are no apps
        return False


def of_app(module: str, name: str) -> Callable[..., Any] | None:
    """Return a function of an app; None if the app is absent. Its module is imported when the function is called.

    Args:
        module: name of the module in asr.apps, such as "report.training".
        name: name of the function.
    """

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"asr.apps.{module}"), name)(*arguments)

    return call if has_app(module.partition(".")[0]) else None
