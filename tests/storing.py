"""Object stores for tests: an S3 server, and a proxy in front of it that injects faults."""

import http.client
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asr import shards
from asr.base.storage.settings import StorageSettings

SERVE = """
import logging, sys
from pathlib import Path
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
port, *folders = sys.argv[1:]
store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
for folder in map(Path, folders):
    store.create_bucket(folder.name, "us-east-1")
    for path in folder.rglob("*"):
        if path.is_file():
            store.put_object(folder.name, path.relative_to(folder).as_posix(), path.read_bytes())
server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(port), verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def storage(retry_seconds: float = 20.0, timeout_seconds: float = 5.0, cache_dir: str | None = None) -> StorageSettings:
    """Return storage settings for a server on this machine."""
    return StorageSettings(cache_dir, 1.0, retry_seconds, timeout_seconds)


@dataclass
class S3:
    """A server, and the environment variables of its clients."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        urllib.request.urlopen(request).read()


@contextmanager
def moto() -> Iterator[S3]:
    """Start moto's S3 server in a separate process."""
    with start_moto() as process:
        yield S3(_announced_port(process))
        process.kill()


def start_moto(port: int = 0, *buckets: Path) -> subprocess.Popen[str]:
    """Start moto's S3 server, which prints its port when it is ready.

    Args:
        port: 0 selects a free port.
        buckets: folders that become buckets with their names.
    """
    command = [sys.executable, "-c", SERVE, str(port), *map(str, buckets)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def _announced_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline())


class MortalS3(S3):
    """A server whose bucket is a folder, so that it can be killed and restarted at the same port.

    Args:
        bucket: the folder.
    """

    def __init__(self, bucket: Path) -> None:
        self._bucket = bucket
        self._process = start_moto(0, bucket)
        super().__init__(_announced_port(self._process))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the server by SIGKILL: existing connections are reset, and new connections are refused."""
        with self._process:
            self._process.kill()

    def start(self) -> None:
        """Start the server again; return when it is ready."""
        self._process = start_moto(self.port, self._bucket)
        assert _announced_port(self._process) == self.port


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@dataclass
class FaultyProxy:
    """Forward requests to a server, but answer some of them with the faults in `faults`.

    Args:
        upstream: port of the server.
        hang_seconds: duration of a simulated hang.

    Attributes:
        faults: names of the faults for the next answers to GET and PUT, in order; "" is an answer without a fault.
        forever: fault of all answers after those of `faults`.
        delay_seconds: delay before each answer.
        requests: method, path and byte range of each request.
        most_at_once: maximum number of concurrent requests.
    """

    upstream: int
    hang_seconds: float = 30.0

    def __post_init__(self) -> None:
        self.reset()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._sockets = {self._listener}
        # A forked process inherits the open connections. They end only when both processes have closed them.
        os.register_at_fork(after_in_child=self._close_in_child)
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Stop injecting faults, and clear the list of requests."""
        self.faults, self.forever, self.delay_seconds = deque(), "", 0.0
        self.requests: list[tuple[str, str, str | None]] = []
        self.most_at_once = self._at_once = 0

    def close(self) -> None:
        with suppress(OSError):  # the socket may already be closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _close_in_child(self) -> None:
        for inherited in list(self._sockets):
            with suppress(OSError):  # the socket may already be closed
                os.close(inherited.detach())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        with client, client.makefile("rb") as lines, suppress(OSError):  # the peer may close the connection
            while self._one(client, lines):
                pass
        self._sockets.discard(client)

    def _one(self, client: socket.socket, lines: BinaryIO) -> bool:
        """Answer one request of a connection; return whether another request may follow."""
        first = lines.readline().decode()
        if not first:
            return False
        method, target, _ = first.split()
        headers = {}
        while (line := lines.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = lines.read(int(headers.get("content-length", 0)))
        with self._lock:
            self.requests.append((method, target, headers.get("range")))
            fault = ""
            if method in ("GET", "PUT") or self.forever == "expired_400":
                fault = self.faults.popleft() if self.faults else self.forever
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.delay_seconds)
        with self._lock:
            self._at_once -= 1
        if fault == "ignore_range":
            headers.pop("range", None)
        if fault == "slow_down":
            return self._send(client, 503, {}, SLOW_DOWN)
        if fault == "expired":
            return self._send(client, 403, {}, EXPIRED)
        if fault == "expired_400":  # as S3 answers
            return self._send(client, 400, {}, b"" if method == "HEAD" else EXPIRED)
        if fault == "html":
            return self._send(client, 200, {"ETag": '"page"', "Content-Type": "text/html"}, b"<html>sorry</html>")
        if fault == "reset":
            return _reset(client)
        if fault == "hang":
            time.sleep(self.hang_seconds)
            return False
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream)
        connection.request(method, target, body=body or None, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        sent = {name.lower(): value for name, value in answer.getheaders()}
        if fault == "shorten":  # simulate a server that returns the same wrong length every time
            content = content[: len(content) // 2]
        if fault == "longer":
            content += b"0"
        if fault == "gzip":
            sent["content-encoding"] = "gzip"
        if fault == "other_etag":
            sent["etag"] = '"of-another-version"'
        if fault.endswith("no_etag"):
            sent.pop("etag", None)
        length = sent.pop("content-length", "0") if method == "HEAD" else str(len(content))
        if fault in ("cut", "cut_no_etag", "reset_within", "hang_within", "drip"):
            self._head(client, answer.status, sent, str(len(content)))
            if fault == "drip":
                for position in range(len(content)):
                    client.sendall(content[position : position + 1])
                    time.sleep(0.2)
                return True
            client.sendall(content[: len(content) // 2])
            if fault == "hang_within":
                time.sleep(self.hang_seconds)
            return _reset(client) if fault == "reset_within" else False
        self._head(client, answer.status, sent, length)
        if method != "HEAD":
            client.sendall(content)
        return True

    def _send(self, client: socket.socket, status: int, headers: dict[str, str], content: bytes) -> bool:
        self._head(client, status, headers, str(len(content)))
        client.sendall(content)
        return True

    @staticmethod
    def _head(client: socket.socket, status: int, headers: dict[str, str], length: str) -> None:
        dropped = ("content-length", "transfer-encoding", "connection")
        lines = [f"HTTP/1.1 {status} {http.client.responses[status]}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name not in dropped]
        client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


def _reset(client: socket.socket) -> bool:
    """Close a connection so that the peer gets an RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.shutdown(socket.SHUT_RD)
    client.close()
    return False


@contextmanager
def faulty(server: S3) -> Iterator[FaultyProxy]:
    """Put a proxy in front of a server."""
    proxy = FaultyProxy(server.port)
    try:
        yield proxy
    finally:
        proxy.close()


def index(*arguments: str | Path) -> None:
    """Index shards of another toolkit in place: `asr.shards --index-only`."""
    assert shards.main(["--index-only", *map(str, arguments)]) == 0
