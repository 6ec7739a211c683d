"""This process's access to object stores, safe before and after forks.

obstore's threads do not survive a fork: in a child of a process that used it, the next request would hang. Therefore a
process that forks other processes, such as a training process with its loading processes, does not use obstore itself.
Instead a helper process, which is a new interpreter, uses obstore and returns the bytes through a socket. Loading
processes do not fork, so they use obstore directly.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from asr.base.storage.client import (
    CONCURRENT_REQUESTS,
    SLACK_SECONDS,
    Client,
    Environment,
    Request,
    is_alive,
    store_environment,
    time_limit,
)
from asr.base.storage.settings import StorageSettings, default_storage
from asr.errors import InputError, StoreError, UnreachableStoreError, how_to_install

HELPERS = 3  # maximum number of attempts of a request; each attempt uses a new helper
PARENT_SECONDS = 1.0  # interval at which a helper checks that its parent exists
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # a helper ignores them; its parent ends it

logger = logging.getLogger(__name__)


class _Helper:
    """A process that makes requests for this one.

    Args:
        environment: variables with endpoints and credentials of stores.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        own_end, helper_end = socket.socketpair()
        code = "import sys; sys.path[:] = {!r}\nfrom asr.base.storage.session import serve\nserve({})"
        command = [sys.executable, "-c", code.format(sys.path, helper_end.fileno())]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=[helper_end.fileno()], stdin=null, stdout=null)
        helper_end.close()
        self._connection = Connection(own_end.detach())
        self._in_use = threading.Lock()

    def run(self, requests: Sequence[Request], settings: StorageSettings) -> list[Any]:
        """Send requests as `Client.run` does.

        Raises:
            StoreError: a request failed; the error is that of the first failed request in the given order.
            EOFError, OSError: the helper has ended.
        """
        slowest = max((time_limit(request, settings) for request in requests), default=0.0)
        limit = slowest * (1 + len(requests) // CONCURRENT_REQUESTS) + SLACK_SECONDS
        with self._in_use:
            self._connection.send((list(requests), settings))
            if not self._connection.poll(limit):
                self.end()
                must = "the process that reads object stores must answer"
                raise UnreachableStoreError(f"{must}; it has not answered for {limit:.0f} s.")
            answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Close this process's copy of the connection after a fork; the helper belongs to the parent."""
        self._connection.close()
        self._process.returncode = 0  # otherwise Python would wait for the helper


class _Session:
    """This process's access to stores."""

    def __init__(self, settings: StorageSettings | None) -> None:
        self.settings = settings
        self.lock = threading.Lock()
        self.access: Client | _Helper | None = None


_session = _Session(None)


def configure(settings: StorageSettings | None) -> None:
    """Set the settings of stores for this process and processes forked from it.

    Args:
        settings: settings of stores; None: the defaults.
    """
    _session.settings = settings


def current_settings() -> StorageSettings:
    """Return the settings given to `configure`, or the defaults."""
    if _session.settings is None:
        _session.settings = default_storage()
    return _session.settings


def ask(requests: Sequence[Request]) -> list[Any]:
    """Send requests to stores and return their results, as `Client.run` does.

    Raises:
        StoreError: a request failed; the message names the object and the cause in one line.
        InputError: the package obstore is missing.
    """
    for _ in range(HELPERS):
        try:
            return _access().run(requests, current_settings())
        except (EOFError, OSError):  # the helper was killed; requests can be repeated
            logger.warning("the process that reads object stores has ended; another one is started")
            close()
    must = f"the process that reads object stores must not be killed; it has ended {HELPERS} times"
    raise UnreachableStoreError(f"{must}. Perhaps memory is exhausted.")


def close() -> None:
    """End the helper, if there is one; the next request starts another."""
    if isinstance(_session.access, _Helper):
        _session.access.end()
        _session.access = None


def _access() -> Client | _Helper:
    with _session.lock:
        environment = store_environment()
        if isinstance(_session.access, _Helper) and _session.access.environment != environment:
            close()
        if _session.access is None:
            try:
                import obstore  # noqa: F401  starts no threads before the first request
            except ImportError:
                must = "s3:// and https:// need the package obstore"
                raise InputError(f"{must}; it is not installed. {how_to_install('s3')}") from None
            is_child = multiprocessing.parent_process() is not None
            _session.access = Client() if is_child and is_alive() else _Helper(environment)
        return _session.access


def _begin_anew() -> None:
    """Reset the session in a forked process, which cannot use the parent's client or helper."""
    global _session
    access, before = _session.access, _session
    if isinstance(access, _Helper):
        access.leave()
    _session = _Session(before.settings)


def serve(descriptor: int) -> None:
    """Run a helper process: answer requests from a socket until the socket is closed or the parent has ended."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    parent, connection, client = os.getppid(), Connection(descriptor), Client()
    while True:
        while not connection.poll(PARENT_SECONDS):
            if os.getppid() != parent:
                return
        try:
            requests, given = connection.recv()
        except EOFError:
            return
        try:
            answer: Any = client.run(requests, given)
        except StoreError as error:
            answer = error
        except Exception:
            answer = RuntimeError(traceback.format_exc())
        connection.send(answer)


atexit.register(close)
os.register_at_fork(after_in_child=_begin_anew)
