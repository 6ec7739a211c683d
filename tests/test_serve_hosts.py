"""Hosts and origins of requests: pages of other sites can neither read from the server nor send to it."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asr.apps.serve.hosts import host_of, known_hosts
from asr.errors import InputError
from tests.browser import launched, visit
from tests.refusals import mentions, refused
from tests.serving import Server, answer, multipart, serving
from tests.test_serve_bad_input import SAID, one_line

HEAD = "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=b0undary\r\n"
FOREIGN = ("evil.example", "evil.example:80", "localhost.evil.example", "192.0.2.1", "x@localhost", "localhost/", "")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("said") / "said.wav"
    path.write_bytes(SAID)
    return path


@pytest.fixture(scope="module")
def server(fluent: Path, recording: Path) -> Iterator[Server]:
    with serving(fluent / "run", "--example", recording, "--allowed-host", "speech.example") as running:
        yield running


def ask(server: Server, host: str, method: str = "GET", path: str = "/health", **headers: str) -> tuple[int, bytes]:
    """Send a request with hand-written headers; a POST sends a recording."""
    body = multipart(SAID) if method == "POST" else b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Content-Length": str(len(body))}.items())
    with server.connect() as connection:
        connection.sendall((HEAD.format(method=method, path=path, host=host) + lines + "\r\n").encode() + body)
        return answer(connection)


# ---- hosts


def test_a_request_to_an_unknown_host_name_is_refused(server: Server) -> None:
    for host in FOREIGN:
        for method, path in (("GET", "/metrics"), ("GET", "/examples/0"), ("GET", "/"), ("POST", "/transcribe")):
            status, body = ask(server, host, method, path)
            assert status == 421, (host, path)
            assert mentions(one_line(body), f"the host; got {host!r}")
    server.wait_for_log(r"GET /examples/0 421")


def test_known_host_names_are_answered_with_any_port(server: Server) -> None:
    for host in ("127.0.0.1", f"127.0.0.1:{server.port}", "localhost:1", "LocalHost.", "[::1]:8000", "speech.example"):
        assert ask(server, host)[0] == 200, host
        assert ask(server, host, "POST", "/transcribe")[0] == 200, host


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        status, body = answer(connection)
    assert status == 421
    assert one_line(body)


LOOPBACK = "localhost 127.0.0.1 127.0.0.1:8000 [::1] [::1]:8000 [0:0::0:1] LOCALHOST. ::1"


@pytest.mark.parametrize(
    ("given", "known", "unknown"),
    [
        (("127.0.0.1", "127.0.0.1", []), LOOPBACK, "evil.example 192.0.2.1 0.0.0.0 speech.example localhost.example *"),
        (("localhost", "::1", []), LOOPBACK, "evil.example [2001:db8::1]"),
        (("127.0.0.2", "127.0.0.2", []), "127.0.0.2 " + LOOPBACK, "127.0.0.3"),
        (("0.0.0.0", "0.0.0.0", []), f"{socket.gethostname()} 192.0.2.1:8000 [2001:db8::1] localhost", "evil.example"),
        (("::", "::", []), f"{socket.gethostname()}:80 192.0.2.1 localhost", "evil.example 1.2.3"),
        (("speech.lan", "192.0.2.7", []), "speech.lan:8000 192.0.2.7", "other.lan"),
        (("127.0.0.1", "127.0.0.1", ["Speech.Example", "192.0.2.1"]), "speech.example:1 192.0.2.1", "a.speech.example"),
        (("127.0.0.1", "127.0.0.1", ["*"]), "evil.example 192.0.2.1 localhost", ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_server_answers_requests_for_known_hosts_and_for_no_others(
    given: tuple[str, str, list[str]], known: str, unknown: str
) -> None:
    hosts = known_hosts(*given)
    assert [host for host in known.split() if not hosts.has(host_of(host))] == []
    assert [host for host in unknown.split() if hosts.has(host_of(host))] == []


@pytest.mark.parametrize("name", ["https://speech.example", "a b", "", "*.example", "ä.example", "a\nb"])
def test_an_allowed_host_must_be_a_host_name(name: str) -> None:
    with refused(InputError, "--allowed-host ... of a host"):
        known_hosts("127.0.0.1", "127.0.0.1", [name])


# ---- origins


def test_a_request_from_a_page_of_another_site_is_refused(server: Server) -> None:
    before = server.metric("asr_audio_seconds_total")
    for origin in (
        "https://evil.example",
        "null",
        "http://127.0.0.1.evil.example:8000",
        "http://192.0.2.1",
        "localhost",
    ):
        status, body = ask(server, f"127.0.0.1:{server.port}", "POST", "/transcribe", Origin=origin)
        assert status == 403, origin
        assert mentions(one_line(body), f"page of another; got {origin!r}")
    assert server.metric("asr_audio_seconds_total") == before


def test_a_request_from_the_servers_own_page_is_accepted(server: Server) -> None:
    for host, origin in (
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("127.0.0.1:8000", "https://speech.example"),  # behind a proxy that connects to this IP address
    ):
        assert ask(server, host, "POST", "/transcribe", Origin=origin)[0] == 200, origin


def test_a_page_at_another_address_counts_as_another_site_even_if_all_addresses_are_served() -> None:
    hosts = known_hosts("0.0.0.0", "0.0.0.0", [])
    assert hosts.has("192.0.2.1")
    assert not hosts.has_named("192.0.2.1")


# ---- a browser misled by DNS


class Foreign(http.server.BaseHTTPRequestHandler):
    """A web site with a different origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def foreign() -> Iterator[int]:
    """The local port of a web site with a different origin."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_address[1]
        site.shutdown()


@pytest.fixture(scope="module")
def misled() -> Iterator[Any]:
    """A browser that resolves names of another site to this machine."""
    yield from launched("--host-resolver-rules=MAP *.example 127.0.0.1")


def test_a_foreign_host_name_rebound_to_this_machine_is_refused(misled: Any, server: Server) -> None:
    page = visit(misled, f"http://evil.example:{server.port}/examples/0").page
    assert mentions(page.locator("body").inner_text(), "the host; got 'evil.example")
    read = "fetch('/metrics').then(answer => answer.text())"
    assert "asr_requests" not in page.evaluate(read)
    page.context.close()


def test_a_recording_sent_by_another_site_is_not_transcribed(misled: Any, server: Server, foreign: int) -> None:
    page = visit(misled, f"http://evil.example:{foreign}/").page
    before = server.metric("asr_audio_seconds_total")
    page.evaluate(
        """async ([address, bytes]) => {
          const form = new FormData();
          form.append("file", new File([new Uint8Array(bytes)], "a.wav"));
          await fetch(address, { method: "POST", body: form, mode: "no-cors" });
        }""",
        [f"{server.address}/transcribe", list(SAID)],
    )
    server.wait_for_log("POST /transcribe 403")
    assert server.metric("asr_audio_seconds_total") == before
    page.context.close()


# ---- proxies


def test_the_client_address_is_that_of_the_connection(server: Server) -> None:
    assert ask(server, "localhost", path="/health?", **{"X-Forwarded-For": "192.0.2.66"})[0] == 200
    server.wait_for_log("127.0.0.1 GET /health 200")
    assert "192.0.2.66" not in server.log.read_text()


def test_forwarded_addresses_are_accepted_only_from_the_named_proxy(fluent: Path) -> None:
    with serving(fluent / "run", "--forwarded-allow-ips", "127.0.0.1, 10.0.0.0/8") as server:
        assert ask(server, "localhost", **{"X-Forwarded-For": "192.0.2.66, 10.1.2.3"})[0] == 200
        server.wait_for_log("^.*192.0.2.66 GET /health 200")
