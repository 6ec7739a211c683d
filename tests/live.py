"""A streaming server and WebSocket clients in the process of a test.

The server and the clients share one event loop; the network runs in a thread.
"""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from asr import Stream
from asr.apps.serve.hosts import Hosts
from asr.apps.serve.hotwords import ServedHotwords
from asr.apps.serve.jobs import Jobs
from asr.apps.serve.metrics import Metrics
from asr.apps.serve.run import make_server, serve
from asr.apps.serve.service import Service
from asr.apps.serve.stream_client import StreamLimits
from asr.apps.serve.stream_sockets import StreamSockets
from asr.apps.serve.streams import Streams
from asr.apps.serve.upload import Limits, Uploads
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.recognizer import Recognizer
from tests.conftest import PATIENCE
from tests.forked import Command
from tests.serving import Server, address_in

RATE = 16000
LIMITS = StreamLimits(most=32, max_seconds=600, idle_seconds=20)
END = '{"end": true}'


@dataclass
class Live:
    """A running server.

    Args:
        address: ws://127.0.0.1:PORT
        service: the service in the server.
        server: the server of uvicorn.
    """

    address: str
    service: Service
    server: Any

    def connect(self, path: str = "/stream", **options: Any) -> connect:
        return connect(self.address + path, compression=None, ping_interval=None, **options)

    def metric(self, name: str) -> float:
        """Read a metric; a metric that was never counted is 0."""
        lines = self.service.metrics.text().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def service(recognizer: Recognizer, limits: StreamLimits = LIMITS, **options: Any) -> Service:
    """Make the service of a server without starting its threads."""
    metrics = Metrics()
    streams = Streams(recognizer, on_turn=metrics.turn, **options)
    hotwords = ServedHotwords(recognizer)
    sockets = StreamSockets(streams, limits, hotwords, metrics.stream, metrics.stream_ended)
    uploads = Uploads(Limits(10_000_000, 60, 10), 4, metrics.uploading)
    jobs = Jobs(recognizer, INFERENCE, queue=4)
    return Service("live", recognizer, jobs, sockets, uploads, metrics, Hosts(frozenset({"127.0.0.1"})), hotwords)


@contextlib.asynccontextmanager
async def live(recognizer: Recognizer, limits: StreamLimits = LIMITS, **options: Any) -> AsyncIterator[Live]:
    """Start a server in this event loop, and stop it at the end."""
    served = service(recognizer, limits, **options)
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        server = make_server(served, server_socket, stop_seconds=5)
        served.sockets.streams.start()
        running = asyncio.create_task(server.serve(sockets=[server_socket]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield Live(f"ws://127.0.0.1:{server_socket.getsockname()[1]}", served, server)
        finally:
            server.should_exit = True
            await running
            served.sockets.streams.stop()
            served.sockets.streams.join(PATIENCE)


def main(recognizer: str, most: str) -> None:
    """Serve streams of the recogniser that the expression `recognizer` makes."""
    import tests.listener
    import tests.test_streaming

    torch.set_num_threads(1)
    made = eval(recognizer, {"tests": tests, "torch": torch})
    served = service(made, StreamLimits(int(most), 600, 60), num_threads=1)
    serve(served, socket.create_server(("127.0.0.1", 0), backlog=100), 10)


@contextlib.contextmanager
def live_process(recognizer: str, most: int) -> Iterator[Server]:
    """Start a server in a separate process, which evaluates the expression `recognizer` to make its recogniser."""
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder, "output"), Path(folder, "log")
        process = Command("tests.live", recognizer, most, stdout=output, stderr=log)
        try:
            yield Server(address_in(output, log, process), process, log, Path(folder))
        finally:
            process.kill()
            process.wait()


def pcm(waveform: Tensor) -> bytes:
    return (waveform * 2**15).round().clamp(-(2**15), 2**15 - 1).to(torch.int16).numpy().tobytes()


def from_pcm(samples: bytes) -> Tensor:
    return torch.frombuffer(bytearray(samples), dtype=torch.int16).float() / 2**15


async def events(connection: ClientConnection) -> list[dict[str, Any]]:
    """Return the server's messages up to the end of the connection."""
    replies = []
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE):
            while True:
                replies.append(json.loads(await connection.recv()))
    return replies


async def say(
    server: Live, messages: Sequence[bytes], first: dict[str, Any] | None = None, pause: float = 0.0
) -> list[dict[str, Any]]:
    """Send messages of audio and then the end of the stream; return all messages of the server."""
    async with server.connect() as connection:
        telling = asyncio.create_task(events(connection))
        await connection.send(json.dumps(first or {"sample_rate": RATE}))
        for message in messages:
            await connection.send(message)
            await asyncio.sleep(pause)
        await connection.send(END)
        return await telling


def final_words(replies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [word for event in replies for word in event.get("final", [])]


def text(replies: Sequence[dict[str, Any]]) -> str:
    """Return all final words of a completed stream."""
    assert "end" in replies[-1], replies[-1]
    return " ".join(word["text"] for word in final_words(replies))


def alone(recognizer: Recognizer, waveform: Tensor, **options: Any) -> list[Any]:
    """Return the final words of an `asr.Stream` that receives all samples at once."""
    stream = Stream(recognizer, **options)
    return [*stream.feed(waveform).final, *stream.finish().final]


if __name__ == "__main__":
    main(*sys.argv[1:])
