"""Common handling of all requests: a line in the log, metrics, and response headers."""

import logging
import time
from collections.abc import Callable, MutableMapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr.server.metrics import CLIENT_GONE
from asr.text.printable import printable

SHOWN = 80  # maximum number of characters of an address in the log
SWITCHING = 101  # status of a switch to the WebSocket protocol; counted when the connection ends

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger("asr.server")


class Connection:
    """The outermost layer of the application (ASGI).

    After a refusal, uvicorn reads and discards the rest of the request for a while, so that the client can read the
    reason.

    Args:
        app: the next inner layer.
        on_answer: called with address, status and duration in seconds of each request.
    """

    def __init__(self, app: ASGIApp, on_answer: Callable[[str, int, float], object]) -> None:
        self._app = app
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = CLIENT_GONE

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message = {**message, "headers": with_headers(list(message.get("headers", [])))}
            elif message["type"] == "websocket.accept":
                status = SWITCHING
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began
            self._on_answer(scope["path"], status, seconds)
            logger.info("%s", _line(scope, status, seconds))


def with_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the default headers, except headers that the answer already has."""
    present = {name.lower() for name, _ in headers}
    policy = (b"content-security-policy", POLICY.encode())
    return headers + [(name, value) for name, value in (*HEADERS, policy) if name not in present]


def _line(scope: MutableMapping[str, object], status: int, seconds: float) -> str:
    client = scope.get("client")
    address = client[0] if isinstance(client, tuple) else "-"
    path = str(scope["path"])
    path = path if len(path) <= SHOWN else path[:SHOWN] + "…"
    return printable(f"{address} {scope.get('method', 'WebSocket')} {path} {status} {seconds:.3f} s")
