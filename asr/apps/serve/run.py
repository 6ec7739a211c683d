"""Start and stop of the server: it prints its address, and finishes accepted requests when it is stopped.

The answers to malformed requests and handshakes are JSON, and a WebSocket that receives too many frames is closed.
Uvicorn handles idle connections and clients that do not read. On public networks, use a reverse proxy for this.
"""

import asyncio
import ipaddress
import json
import logging
import signal
import socket
import sys
from contextlib import suppress

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request, Response

from asr.apps.serve.app import make_app
from asr.apps.serve.service import Service
from asr.apps.serve.stream_client import MAX_MESSAGE_BYTES
from asr.apps.serve.stream_sockets import StreamSockets

LOOK_SECONDS = 0.1  # interval between checks whether the server has started or must stop
PING_SECONDS = 20  # interval of pings on a WebSocket, so that proxies do not close the connection
UNREAD_SECONDS = 30  # time after which a client that does not read is disconnected, if the system supports it
# Messages that uvicorn logs as errors, although a client caused the error or receives the message.
NO_FAULTS = ("Invalid UTF-8 sequence", "ASGI callable returned without completing handshake")
LAST_SECONDS = 2  # time to send the last answers, after the time to finish requests

logger = logging.getLogger("asr.apps.serve")


FRAMES_A_SECOND = 200  # allowed frames in addition to messages: pings, pongs, and fragments after the first
SPARE_FRAMES = 1_000  # number of frames that a client may send in addition to this rate
JSON = "application/json"


class HttpProtocol(H11Protocol):
    """HTTP/1.1; the answer to a malformed request is JSON."""

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, unless an answer has already begun; the application's answer is discarded."""
        if self.cycle is not None:  # h11 would refuse a second answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(msg)
            headers = [
                ("content-type", JSON),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events = h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets with a limit on frames that are not messages."""

    _began: float | None = None
    _num_frames = 0

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake; a refusal is JSON."""
        accept = self.conn.accept

        def accept_or_refuse(request: Request) -> Response:
            response = accept(request)
            return response if response.status_code == 101 else _as_json(response)

        self.conn.accept = accept_or_refuse  # type: ignore[method-assign]
        super().handle_connect(event)

    def handle_cont(self, event: Frame) -> None:
        """Handle a fragment of a message."""
        if self._counts():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._counts():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Handle the answer to a ping."""
        if self._counts():
            super().handle_pong(event)

    def _counts(self) -> bool:
        """Count a frame, and return whether to handle it; if there are too many, close the connection."""
        if self.close_sent or self.transport.is_closing():
            return False
        now = self.loop.time()
        self._began = now if self._began is None else self._began
        self._num_frames += 1
        if self._num_frames <= SPARE_FRAMES + FRAMES_A_SECOND * (now - self._began):
            return True
        self.conn.fail(CloseCode.POLICY_VIOLATION, "too many pings or fragments of messages")
        self.handle_parser_exception()
        return False


def error_body(line: str) -> bytes:
    """Return the JSON body of an error."""
    return json.dumps({"detail": line}).encode()


def _as_json(response: Response) -> Response:
    """Convert the answer to a failed handshake to JSON."""
    reason = (response.body or b"").decode("utf-8", "replace")
    body = error_body(" ".join(reason.split()) or "the handshake of a WebSocket failed.")
    headers = Headers(
        [(name, value) for name, value in response.headers.raw_items() if not name.lower().startswith("content-")]
    )
    headers["Content-Type"], headers["Content-Length"] = JSON, str(len(body))
    return Response(response.status_code, response.reason_phrase, headers, body)


def serve(
    service: Service,
    server_socket: socket.socket,
    stop_seconds: float,
    forwarded_allow_ips: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        service: the service, whose jobs and streams have not been started.
        server_socket: socket that is bound but not listening.
        stop_seconds: time to finish accepted requests; all other requests are answered with 503.
        forwarded_allow_ips: addresses of proxies trusted to name the client, in uvicorn's format.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logger.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # errors of a form are sent to the client
    logging.getLogger("uvicorn.error").addFilter(lambda record: not record.msg.startswith(NO_FAULTS))
    server = make_server(service, server_socket, stop_seconds, forwarded_allow_ips)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the signal again after it has stopped
        signal.signal(number, lambda *_: None)
    workers = service.jobs, service.sockets.streams
    for worker in workers:
        worker.start()
    asyncio.run(_run(server, service, server_socket, stop_seconds))
    for worker in workers:
        worker.stop()
        worker.join(LAST_SECONDS)
    print("stopped", file=sys.stderr)


def make_server(
    service: Service, server_socket: socket.socket, stop_seconds: float, forwarded_allow_ips: str | None = None
) -> uvicorn.Server:
    """Return the server; the arguments are those of `serve`."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit this option
        server_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD_SECONDS)
    settings = uvicorn.Config(
        make_app(service),
        loop="asyncio",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=None,  # a pong waits behind audio that is not recognised yet; streams have their own timeouts
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=forwarded_allow_ips is not None,
        forwarded_allow_ips=forwarded_allow_ips,
        timeout_graceful_shutdown=round(stop_seconds + LAST_SECONDS),
    )
    return _Server(settings, service.sockets, stop_seconds)


class _Server(uvicorn.Server):
    """Uvicorn's server, which lets streams send all recognised words before it closes their sockets."""

    def __init__(self, settings: uvicorn.Config, sockets: StreamSockets, stop_seconds: float) -> None:
        super().__init__(settings)
        self._stream_sockets = sockets
        self._stop_seconds = stop_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, finish the streams, then shut down; uvicorn calls this when it stops."""
        for server in self.servers:  # accept no more connections
            server.close()
        await self._stream_sockets.stop(self._stop_seconds)
        await super().shutdown(sockets)


async def _run(server: uvicorn.Server, service: Service, server_socket: socket.socket, stop_seconds: float) -> None:
    watching = asyncio.ensure_future(_watch(server, service, _address(server_socket), stop_seconds))
    try:
        await server.serve(sockets=[server_socket])
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(server: uvicorn.Server, service: Service, address: str, stop_seconds: float) -> None:
    """Print the address when the server listens; when it stops, wait `stop_seconds`, then end jobs and streams."""
    while not server.started:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"serving {service.name} at {address} (Ctrl-C stops it)", flush=True)
    while not server.should_exit:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"stopping: accepted requests have up to {stop_seconds:g} seconds to finish", file=sys.stderr)
    await asyncio.sleep(stop_seconds)
    service.jobs.stop()
    service.sockets.streams.stop()


def _address(server_socket: socket.socket) -> str:
    host, port = server_socket.getsockname()[:2]
    is_unspecified = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    host = socket.gethostname() if is_unspecified else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
