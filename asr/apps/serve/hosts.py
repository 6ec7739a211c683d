"""Check the hosts that requests name, and the sites whose pages send recordings.

The server has no passwords, so it must defend itself against pages of other sites in a local browser. Such a page
can let its own host name resolve to this machine (DNS rebinding) and then read every answer. Therefore the server
accepts only known host names. A page can also send a form to any address, though it cannot read the answer. Therefore
the server accepts recordings only from known origins.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from asr.apps.serve.problems import UnusableError, problem
from asr.errors import InputError, shown

ANY = "*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?")  # host and port, in lower case

HOST_MUST = "the host must be a known name of the server"
ORIGIN_MUST = "a recording must not be sent by a page of another site"  # this also applies to a stream
REMEDY = "To allow it, start the server with --allowed-host NAME."


@dataclass(frozen=True)
class Hosts:
    """Known names of a server.

    Args:
        names: host names and addresses, as `host_of` returns them; ANY stands for every host.
        any_address: whether every IP address is accepted. This is safe, because only names can be rebound.
    """

    names: frozenset[str]
    any_address: bool = False

    def has(self, host: str | None) -> bool:
        """Whether the host is known; None (missing or malformed) is known only if ANY is allowed."""
        return self.has_named(host) or (self.any_address and host is not None and _address(host) is not None)

    def has_named(self, host: str | None) -> bool:
        """Whether the host is among the names; `any_address` is ignored."""
        return ANY in self.names or host in self.names


class KnownHosts:
    """A layer of the application (ASGI) that refuses requests for unknown hosts or from pages of unknown sites.

    Args:
        app: the next inner layer.
        hosts: known hosts.
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
        if origin is None or scope.get("method", "POST") != "POST":  # curl sends no origin; a WebSocket has no method
            return None
        site = host_of(origin.partition("://")[2])
        if site == host_of(host) or self._hosts.has_named(site):
            return None
        return problem(scope["path"], UnusableError(403, f"{ORIGIN_MUST}; got {shown(origin)}. {REMEDY}"))


def known_hosts(host: str, listening: str, allowed: Sequence[str]) -> Hosts:
    """Collect the known names of a server: names in its options, and names of this machine.

    Args:
        host: name or address to listen at, as given by the user.
        listening: the IP address of `host`.
        allowed: further hosts, or ANY.
    """
    for name in allowed:
        if name != ANY and host_of(name) is None:
            raise InputError(f"--allowed-host must be the name of a host, or {ANY}; got {shown(name)}.")
    is_loopback = ipaddress.ip_address(listening.partition("%")[0]).is_loopback
    own = LOOPBACK if is_loopback else ("localhost", socket.gethostname())
    names = {name if name == ANY else host_of(name) for name in (host, listening, *own, *allowed)}
    return Hosts(frozenset(filter(None, names)), any_address=not is_loopback)


def host_of(authority: str) -> str | None:
    """Return the normalised host of `host`, `host:port` or `[address]:port`; None for any other text."""
    match = AUTHORITY.fullmatch(authority.lower())
    host = match[1].strip("[]").removesuffix(".") if match else authority
    return _address(host) or (host if match else None)


def _address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None
