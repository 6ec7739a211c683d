"""python -m benchmarks.remote_server FOLDER MS: serve files by byte ranges, each answer after a delay."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from asr.cli.command import run_command


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD, and GET with or without a range, after a delay."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, latency_seconds: float, *given: object) -> None:
        self._folder, self._latency_seconds = folder, latency_seconds
        super().__init__(*given)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""

    def _answer(self, with_body: bool) -> None:
        time.sleep(self._latency_seconds)
        path = self._folder / self.path.lstrip("/")
        size = path.stat().st_size
        start, stop, wanted = 0, size, self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1 if last else size)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))


class Server(ThreadingHTTPServer):
    """A server that does not report connections closed by a client, as readers do before the end of a shard."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, except those of closed connections."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(folder: Path, latency_ms: float) -> None:
    """Serve until killed; the first line of output is the address."""
    server = Server(("127.0.0.1", 0), partial(Handler, folder, latency_ms / 1000))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote_server", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("latency_ms", type=float, metavar="MS", help="before each answer")
    given = parser.parse_args(arguments)
    serve(given.folder, given.latency_ms)
    return 0


if __name__ == "__main__":
    run_command(main)
