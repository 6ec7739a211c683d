"""The server's life: it says where it listens, and stops when it is told to, with what it has taken finished.

Connections that say nothing, or read nothing, are left to uvicorn, and to a reverse proxy where strangers come.
"""

import asyncio
import ipaddress
import logging
import signal
import socket
import sys
from contextlib import suppress

import uvicorn

from asr.server.app import make_app
from asr.server.protocols import HttpProtocol, WebSocketProtocol
from asr.server.service import Service
from asr.server.stream_client import MOST_BYTES
from asr.server.stream_sockets import StreamSockets

LOOK_SECONDS = 0.1  # how often it is seen whether the server is to stop
PING_SECONDS = 20  # of a WebSocket, so that proxies do not take it for dead
UNREAD_SECONDS = 30  # after which a client that takes nothing of what it is sent is cut off, where the system can
# What uvicorn's WebSockets complain of, with a traceback or as of a fault, and a client did, or is told:
NO_FAULTS = ("Invalid UTF-8 sequence", "ASGI callable returned without completing handshake")
LAST_SECONDS = 2  # to hand out the last answers in, when the time to finish is over

logger = logging.getLogger("asr.server")


def serve(
    service: Service,
    server_socket: socket.socket,
    stop_seconds: float,
    forwarded_allow_ips: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        service: whose jobs and streams are not started yet.
        server_socket: bound; nobody listens at it yet.
        stop_seconds: that what has been taken may take to be finished; after that it is answered with 503.
        forwarded_allow_ips: addresses of proxies that may say whom a request is from, as uvicorn reads them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logger.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the client is told what is wrong with its form
    logging.getLogger("uvicorn.error").addFilter(lambda record: not record.msg.startswith(NO_FAULTS))
    server = make_server(service, server_socket, stop_seconds, forwarded_allow_ips)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends itself the signal again when it has stopped
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
    """Make the server; the arguments are those of `serve`."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
        server_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNREAD_SECONDS)
    settings = uvicorn.Config(
        make_app(service),
        loop="asyncio",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MOST_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=None,  # the answer comes behind the audio, which waits to be heard; streams have time-outs
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
    """Uvicorn's; when it is to stop, streams are told all that was heard of them before their sockets are closed."""

    def __init__(self, settings: uvicorn.Config, sockets: StreamSockets, stop_seconds: float) -> None:
        super().__init__(settings)
        self._stream_sockets = sockets
        self._stop_seconds = stop_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Uvicorn's hook."""
        for server in self.servers:  # nobody can connect any more
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
    """Print when the server listens; once it is to stop, end its jobs after `stop_seconds`."""
    while not server.started:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"serving {service.name} at {address} (Ctrl-C stops it)", flush=True)
    while not server.should_exit:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"stopping: what has been taken is finished, for {stop_seconds:g} seconds at most", file=sys.stderr)
    await asyncio.sleep(stop_seconds)
    service.jobs.stop()
    service.sockets.streams.stop()


def _address(server_socket: socket.socket) -> str:
    host, port = server_socket.getsockname()[:2]
    any_of_them = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    host = socket.gethostname() if any_of_them else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
