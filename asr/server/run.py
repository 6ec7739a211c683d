"""The server's life: it says where it listens, and stops when it is told to, with what it has taken finished."""

import asyncio
import ipaddress
import logging
import resource
import signal
import socket
import sys
from contextlib import suppress
from http import HTTPStatus

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from asr.server.connection import with_headers
from asr.server.jobs import Jobs

LOOK_SECONDS = 0.1  # how often it is seen whether the server is to stop
HEAD_SECONDS = 10  # in which a new connection must have said what it asks for
REST_SECONDS = 60  # for the rest of a request that was refused and the head of the next; and to go on to read an answer
LAST_SECONDS = 2  # to hand out the last answers in, when the time to finish is over

logger = logging.getLogger("asr.server")


class Protocol(H11Protocol):
    """uvicorn's, but no client holds a connection for ever that sends no request, or does not read its answer.

    uvicorn's own time-out begins after an answer, and ends with the first byte that comes, of a body that was refused
    or of a head that is never finished.
    """

    _deadline: asyncio.TimerHandle | None = None  # for the next request
    _unread: asyncio.TimerHandle | None = None  # while the client takes nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See when the first request is there."""
        super().connection_made(transport)
        self._await_request(HEAD_SECONDS)

    def on_response_complete(self) -> None:
        """See when the next request is there; until then what is still sent of this one is thrown away."""
        super().on_response_complete()
        self._await_request(REST_SECONDS)

    def pause_writing(self) -> None:
        """See when the client goes on to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        _cancel(self._unread)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as everything else, with a line of JSON, unless there has been an answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = JSONResponse({"detail": "the request must be HTTP; it is malformed."}, 400)
            headers = [*with_headers(answer.raw_headers), (b"connection", b"close")]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=HTTPStatus.BAD_REQUEST.phrase),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        super().connection_lost(exc)
        _cancel(self._deadline)
        _cancel(self._unread)

    def _await_request(self, seconds: float) -> None:
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(seconds, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()  # to close would wait until the client has read all


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def serve(
    app: ASGIApp,
    jobs: Jobs,
    server_socket: socket.socket,
    name: str,
    stop_seconds: float,
    forwarded_allow_ips: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: ASGI.
        jobs: not started yet.
        server_socket: bound; nobody listens at it yet.
        name: of the model, for the line that says where it is served.
        stop_seconds: that what has been taken may take to be finished; after that it is answered with 503.
        forwarded_allow_ips: addresses of proxies that may say whom a request is from, as uvicorn reads them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logger.setLevel(logging.INFO)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the client is told what is wrong with its form
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=forwarded_allow_ips is not None,
        forwarded_allow_ips=forwarded_allow_ips,
        timeout_graceful_shutdown=round(stop_seconds + LAST_SECONDS),
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn sends itself the signal again when it has stopped
        signal.signal(number, lambda *_: None)
    _allow_files()
    jobs.start()
    asyncio.run(_run(server, jobs, server_socket, name, stop_seconds))
    jobs.stop()
    jobs.join(LAST_SECONDS)
    print("stopped", file=sys.stderr)


def _allow_files() -> None:
    """Let as many files be open as the system allows: each request may have two, and 1024 is what a shell allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS calls it infinite, and does not allow as many
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(
    server: uvicorn.Server, jobs: Jobs, server_socket: socket.socket, name: str, stop_seconds: float
) -> None:
    watching = asyncio.ensure_future(_watch(server, jobs, _address(server_socket), name, stop_seconds))
    try:
        await server.serve(sockets=[server_socket])
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(server: uvicorn.Server, jobs: Jobs, address: str, name: str, stop_seconds: float) -> None:
    """Say when it listens; when it is to stop, see that it does."""
    while not server.started:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"serving {name} at {address} (Ctrl-C stops it)", flush=True)
    while not server.should_exit:
        await asyncio.sleep(LOOK_SECONDS)
    print(f"stopping: what has been taken is finished, for {stop_seconds:g} seconds at most", file=sys.stderr)
    await asyncio.sleep(stop_seconds)
    jobs.stop()


def _address(server_socket: socket.socket) -> str:
    host, port = server_socket.getsockname()[:2]
    any_of_them = ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    host = socket.gethostname() if any_of_them else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
