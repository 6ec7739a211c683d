"""Real server processes for tests: `python -m asr.serve` on a free port, with their logs."""

import contextlib
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import PATIENCE
from tests.forked import Command


@dataclass
class Server:
    """A running server.

    Args:
        address: http://127.0.0.1:PORT
        process: the server's process.
        log: file with its stderr.
        scratch: folder for its temporary files.
    """

    address: str
    process: Command
    log: Path
    scratch: Path

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def post(self, content: bytes, name: str = "said.wav", **query: Any) -> httpx.Response:
        """Send one recording."""
        return httpx.post(f"{self.address}/transcribe", files={"file": (name, content)}, params=query, timeout=PATIENCE)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.address}{path}", timeout=PATIENCE)

    def connect(self) -> socket.socket:
        """Open a connection for requests written by hand."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return sum(map(float, values))

    def wait_for_log(self, pattern: str) -> str:
        """Wait until a line of the log matches; return it."""
        end = time.monotonic() + PATIENCE
        while True:
            for line in self.log.read_text().splitlines():
                if re.search(pattern, line):
                    return line
            assert time.monotonic() < end, f"no line matches {pattern!r} in:\n{self.log.read_text()}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serving(model: Path, *arguments: str | Path) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it after the test."""
    with tempfile.TemporaryDirectory() as folder:
        output, log, scratch = (Path(folder, name) for name in ("output", "log", "scratch"))
        scratch.mkdir()
        options = {"stdout": output, "stderr": log, "environment": {"TMPDIR": str(scratch)}}
        process = Command("asr.serve", model, "--port", "0", *arguments, **options)
        try:
            yield Server(address_in(output, log, process), process, log, scratch)
        finally:
            process.kill()
            process.wait()


def address_in(output: Path, log: Path, process: Command) -> str:
    """Wait until a server has printed its address."""
    end = time.monotonic() + PATIENCE
    while True:
        for line in output.read_text().splitlines(keepends=True) if output.is_file() else []:
            if line.endswith("\n") and (match := re.search(r"http://\S+", line)):
                return match[0]
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, f"no address: {log.read_text()}"
        time.sleep(0.02)


def multipart(content: bytes, name: str = 'name="file"; filename="a.wav"', boundary: str = "b0undary") -> bytes:
    """Return a multipart form with one part, as bytes."""
    head = f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode()
    return head + content + f"\r\n--{boundary}--\r\n".encode()


def request_head(*lines: str, boundary: str = "b0undary") -> bytes:
    """Return the HTTP header of an upload, with additional lines."""
    own = ["POST /transcribe HTTP/1.1", "Host: localhost", f"Content-Type: multipart/form-data; boundary={boundary}"]
    return "\r\n".join([*own, *lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Read a complete answer: status and body."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = connection.recv(65536)
        assert piece, f"the server closed the connection after {raw!r}"
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        piece = connection.recv(65536)
        assert piece, f"the server closed the connection after {len(body)} of {length} bytes"
        body += piece
    return int(head.split()[1]), body
