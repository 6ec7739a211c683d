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
from starlette.types import ASGIApp

from asr.server.jobs import Jobs

LOOK_SECONDS = 0.1  # how often it is seen whether the server is to stop
LAST_SECONDS = 2  # to hand out the last answers in, when the time to finish is over

logger = logging.getLogger("asr.server")


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
        http="h11",
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
    jobs.start()
    asyncio.run(_run(server, jobs, server_socket, name, stop_seconds))
    jobs.stop()
    jobs.join(LAST_SECONDS)
    print("stopped", file=sys.stderr)


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
    """Print when the server listens; once it is to stop, end its jobs after `stop_seconds`."""
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
