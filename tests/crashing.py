"""A process that dies while it writes a bundle."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asr.core.checkpoint import bundle

SYSTEM_CALLS = ("rename", "fsync", "chmod")


class Killed(BaseException):
    """A simulated kill; `except Exception` does not catch it."""


@contextmanager
def dies_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Raise Killed at system call number `call`, counted from 0, while a bundle is written.

    All later system calls raise Killed too, and rmtree does nothing, so that a `finally` block cannot clean up.

    Yields:
        The names of the calls so far.
    """
    calls: list[str] = []

    def or_die(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **how: Any) -> Any:
            calls.append(function.__name__)
            if len(calls) > call:
                raise Killed
            return function(*given, **how)

        return called

    def rmtree(*given: Any, real: Any = shutil.rmtree, **how: Any) -> None:
        if len(calls) <= call:
            real(*given, **how)

    with monkeypatch.context() as patched:
        for name in SYSTEM_CALLS:
            patched.setattr(bundle.os, name, or_die(getattr(bundle.os, name)))
        patched.setattr(bundle.shutil, "rmtree", rmtree)
        yield calls
