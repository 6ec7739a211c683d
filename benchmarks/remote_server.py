"""python -m benchmarks.remote_server FOLDER MS: serve files by byte ranges; delay each response by MS."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from asr.core.cli.command import run_command


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD requests, and GET requests with or without a byte range, after a delay."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, latency_seconds: float, *arguments: object) -> None:
        self._folder, self._latency_seconds = folder, latency_seconds
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def _answer(self, with_body: bool) -> None:
        time.sleep(self._latency_seconds)
        path = self._folder / self.path.lstrip("/")
        size = path.stat().st_size
        start, stop, byte_range = 0, size, self.headers.get("Range")
        if byte_range:
            first, _, last = byte_range.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1 if last else size)
        self.send_response(206 if byte_range else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Accept-Ranges", "bytes")
        if byte_range:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))


class Server(ThreadingHTTPServer):
    """A server that ignores connections closed by clients; readers close them before the end of a shard."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report all errors except those of closed connections."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(folder: Path, latency_ms: float) -> None:
    """Serve a folder until the process is killed; print the address as the first line of output."""
    server = Server(("127.0.0.1", 0), partial(Handler, folder, latency_ms / 1000))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve FOLDER with the given latency."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote_server", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("latency_ms", type=float, metavar="MS", help="delay before each response, in milliseconds")
    options = parser.parse_args(arguments)
    serve(options.folder, options.latency_ms)
    return 0


if __name__ == "__main__":
    run_command(main)
