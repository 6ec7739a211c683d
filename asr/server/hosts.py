"""Which hosts requests may be for, and whose pages may send recordings.

The server asks for no password, so what a browser lets a page of another site do matters. Such a page can have its own
name mean this machine (DNS rebinding), and then reads every answer: so a name must be known. It can also send a form
to any address, though it does not get to read the answer: so the origin of what is sent must be known, too.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from asr.errors import InputError, shown
from asr.server.problems import UnusableError, problem

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")  # in lower case

HOST_MUST = "the host must be one that the server is known by"
ORIGIN_MUST = "a recording must not be sent by a page of another site"  # nor a stream
REMEDY = "If it may be, start the server with --allowed-host NAME."


@dataclass(frozen=True)
class Hosts:
    """The hosts that a server is known by.

    Args:
        names: and addresses, as `host_of` writes them; ANY stands for all.
        any_address: whether any address will do. None can be made to mean another machine than it does.
    """

    names: frozenset[str]
    any_address: bool = False

    def has(self, host: str | None) -> bool:
        """Whether the server is known by this host; None: there is none, or it is malformed."""
        return self.has_named(host) or (self.any_address and host is not None and _address(host) is not None)

    def has_named(self, host: str | None) -> bool:
        """The same, if any address will not do."""
        return ANY in self.names or host in self.names


class KnownHosts:
    """A layer of the application (ASGI) that refuses what is for an unknown host, or from an unknown site.

    Args:
        app: the layer within.
        hosts: that are known.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._hosts.has(host_of(host)):
            return problem(scope["path"], UnusableError(421, f"{HOST_MUST}; got {shown(host)}. {REMEDY}"))
        if origin is None or scope.get("method", "POST") != "POST":  # curl sends none; a WebSocket has no method
            return None
        site = host_of(origin.partition("://")[2])
        if site == host_of(host) or self._hosts.has_named(site):
            return None
        return problem(scope["path"], UnusableError(403, f"{ORIGIN_MUST}; got {shown(origin)}. {REMEDY}"))


def known_hosts(host: str, listening: str, allowed: Sequence[str]) -> Hosts:
    """Collect the names of a server: those that it was started with, and this machine's own.

    Args:
        host: that it was told to listen at.
        listening: the address which that is.
        allowed: other hosts, or ANY.

    Raises:
        InputError: for what cannot be a host.
    """
    for name in allowed:
        if name != ANY and host_of(name) is None:
            raise InputError(f"--allowed-host must be the name of a host, or {ANY}; got {shown(name)}.")
    is_loopback = ipaddress.ip_address(listening.partition("%")[0]).is_loopback
    own = LOOPBACK if is_loopback else ("localhost", socket.gethostname())
    names = {name if name == ANY else host_of(name) for name in (host, listening, *own, *allowed)}
    return Hosts(frozenset(filter(None, names)), any_address=not is_loopback)


def host_of(authority: str) -> str | None:
    """The host of `host`, `host:port` or `[address]:port`, in one way of writing it; None if it is none of these."""
    match = AUTHORITY.fullmatch(authority.lower())
    host = match[1].strip("[]").removesuffix(".") if match else authority
    return _address(host) or (host if match else None)


def _address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None
