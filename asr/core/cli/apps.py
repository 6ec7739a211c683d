"""What an app adds to a command of core, which works without the folder asr/apps."""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

logger = logging.getLogger(__name__)


def has_app(name: str) -> bool:
    """Return whether the folder asr/apps/<name> is there."""
    try:
        return find_spec(f"asr.apps.{name}") is not None
    except ModuleNotFoundError:  # there are no apps
        return False


def of_app(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls a function of asr.apps, or logs that the app is absent.

    Args:
        module: name of the module in asr.apps, such as "report.training"; it is imported when the function is called.
        name: name of the function.
    """

    def call(*arguments: Any) -> Any:
        app = module.partition(".")[0]
        try:
            found = import_module(f"asr.apps.{module}")
        except ModuleNotFoundError as error:
            if not f"asr.apps.{app}.".startswith(f"{error.name}."):
                raise
            logger.warning("%s is left out, because asr.apps.%s is not installed", name, app)
            return None
        return getattr(found, name)(*arguments)

    return call
