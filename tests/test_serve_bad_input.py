"""Bad requests to the server: each gets one clear line, leaves no files, and the next request is answered."""

import io
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import pytest
import soundfile

from tests.media import media_file, needs_media
from tests.refusals import mentions
from tests.serving import Server, answer, multipart, request_head, serving
from tests.tones import SAMPLE_RATE, speak

MAX_SECONDS, MAX_BYTES, UPLOAD_SECONDS = 20, 3_000_000, 2
TRACES = ("Traceback", 'File "', "/dev/fd", "/tmp", ".py")  # texts that no answer may contain


def encoded(waveform: np.ndarray, form: str = "WAV", subtype: str | None = None, rate: int = SAMPLE_RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, waveform, rate, format=form, subtype=subtype)
    return file.getvalue()


SAID = encoded(speak("abcd ef"))


@pytest.fixture(scope="module")
def server(fluent: Path) -> Iterator[Server]:
    limits = ["--max-seconds", str(MAX_SECONDS), "--max-megabytes", str(MAX_BYTES / 1e6)]
    with serving(fluent / "run", *limits, "--upload-seconds", str(UPLOAD_SECONDS)) as running:
        yield running


@pytest.fixture(autouse=True)
def _server_is_unharmed(server: Server) -> Iterator[None]:
    """After each test the server answers, has no open files, has left no file, and has logged no internal error."""
    yield
    assert server.post(SAID).json()["text"] == "abcd ef"
    end = time.monotonic() + 10
    while server.metric("asr_uploads") or server.metric("asr_waiting_recordings"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(server.scratch.iterdir()) == []
    assert not [path for path in open_files(server.process.pid) if str(server.scratch) in str(path)]
    assert "Traceback" not in server.log.read_text()


def open_files(process: int) -> Iterator[Path]:
    """List the open files of a process; files closed in the meantime are omitted."""
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield path.readlink()


def line(response: httpx.Response) -> str:
    """Return the one line of an error."""
    return one_line(response.content)


def one_line(body: bytes) -> str:
    problem = json.loads(body)
    assert problem.keys() == {"detail"}
    detail: str = problem["detail"]
    assert isinstance(detail, str)
    assert "\n" not in detail
    assert detail.endswith(".")
    assert not [trace for trace in TRACES if trace in detail], detail
    return detail


# ---- content of the file


def flac_silence(seconds: float, unknown_length: bool = False) -> bytes:
    """Make a small file of long silence; without the length in its header, only decoding reveals the duration."""
    content = bytearray(encoded(np.zeros(round(seconds * SAMPLE_RATE), dtype=np.int16), "FLAC"))
    if unknown_length:  # STREAMINFO from byte 10: rate (20 bits), channels (3), sample size (5), samples (36)
        content[4 + 4 + 13] &= 0xF0
        content[4 + 4 + 14 : 4 + 4 + 18] = bytes(4)
    return bytes(content)


def wav_of_ten_hours() -> bytes:
    """Make a header that declares ten hours at 8 bits and 8 kHz, with half a second of samples."""
    samples = 10 * 3600 * 8000
    head = b"RIFF" + struct.pack("<I", 36 + samples) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    return head + b"data" + struct.pack("<I", samples) + bytes([128]) * 4000


def nan_wav() -> bytes:
    waveform = speak("abcd")
    waveform[100:103] = np.nan
    return encoded(waveform, subtype="FLOAT")


NOT_AUDIO: dict[str, bytes] = {
    "zero bytes": b"",
    "a text called .wav": b"this is not audio\n" * 100,
    "JSON": json.dumps({"file": "x"}).encode(),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "random bytes": np.random.default_rng(0).bytes(10_000),
    "a WAV header and nothing more": encoded(np.zeros(0)),
    "a truncated WAV": SAID[: len(SAID) // 2],
    "a truncated FLAC": encoded(speak("abcd ef"), "FLAC")[:-500],
    "a truncated Ogg": encoded(speak("abcd ef"), "OGG")[:-500],
    "a truncated MP3": encoded(speak("abcd ef abcd ef"), "MP3")[:-50],
    "NaN samples": nan_wav(),
    "a ZIP": b"PK\x03\x04" + bytes(1000),
    "an HTML page": b"<html><script>alert(1)</script></html>",
}


@pytest.mark.parametrize("content", NOT_AUDIO.values(), ids=NOT_AUDIO.keys())
def test_a_file_that_is_not_audio_is_refused_with_the_reason(server: Server, content: bytes) -> None:
    response = server.post(content)
    assert response.status_code == 422
    assert line(response).startswith("file: ")


def damaged_after(content: bytes, share: float) -> bytes:
    """Overwrite a tenth of a file after this share of it, so that decoding that part would fail."""
    begin, length = round(share * len(content)), len(content) // 10
    return content[:begin] + bytes([0x55]) * length + content[begin + length :]


TOO_LONG = {  # files, and the length that the server names: by the header, or up to the second that is too much
    "by its header": (encoded(np.zeros(21 * SAMPLE_RATE, dtype=np.int16)), 21.0),
    "an hour of silence in a small FLAC": (damaged_after(flac_silence(3600), 0.1), 3600.0),
    "silence in a FLAC without a length": (damaged_after(flac_silence(600, True), 0.5), 21.0),
    "a low sample rate": (encoded(np.zeros(30_000, dtype=np.int16), rate=1000), 30.0),
}


def check_too_long(response: httpx.Response, seconds: float) -> None:
    assert response.status_code == 413
    assert mentions(line(response), f"at most {MAX_SECONDS} seconds ... at least {seconds:.1f}")


@pytest.mark.parametrize(("content", "seconds"), TOO_LONG.values(), ids=TOO_LONG.keys())
def test_a_recording_that_is_too_long_is_refused_before_it_is_decoded_to_the_end(
    server: Server, content: bytes, seconds: float
) -> None:
    assert len(content) < MAX_BYTES
    check_too_long(server.post(content), seconds)


@needs_media
@pytest.mark.parametrize("suffix", ["m4a", "webm"])
def test_a_phones_or_browsers_recording_that_is_too_long_is_refused_before_it_is_decoded_to_the_end(
    server: Server, suffix: str
) -> None:
    """The length is not known before decoding; nor is the damage in an M4A file, which would be another error."""
    options = {"live": "1"} if suffix == "webm" else None
    noise = 0.1 * np.random.default_rng(0).standard_normal(120 * SAMPLE_RATE)
    content = media_file(noise, suffix=suffix, rate=SAMPLE_RATE, bit_rate=24_000, options=options)
    content = content if suffix == "webm" else damaged_after(content, 0.5)
    check_too_long(server.post(content, f"long.{suffix}"), 21.0)


@needs_media
def test_a_gap_of_hours_counts_as_audio(server: Server) -> None:
    content = media_file(np.zeros(SAMPLE_RATE), suffix="webm", rate=SAMPLE_RATE, gap=(0.5, 36000.0))
    check_too_long(server.post(content, "gap.webm"), 21.0)


@needs_media
@pytest.mark.parametrize("suffix", ["m4a", "mp4", "webm"])
def test_a_damaged_recording_of_a_phone_or_browser_is_refused_with_the_reason(server: Server, suffix: str) -> None:
    content = media_file(speak("abcd ef"), suffix=suffix, rate=SAMPLE_RATE)
    for damaged in (content[: len(content) // 2], content[:40], media_file(suffix=suffix, video_seconds=1.0)):
        response = server.post(damaged, f"x.{suffix}")
        assert response.status_code == 422
        assert line(response).startswith("file: ")


def test_a_header_that_falsely_declares_ten_hours_is_refused(server: Server) -> None:
    assert server.post(wav_of_ten_hours()).status_code in (413, 422)


def test_memory_is_bounded_by_the_limits(server: Server) -> None:
    before, silence = resident(server), flac_silence(3600 * 3, True)
    for _ in range(5):
        server.post(silence)
    assert resident(server) - before < 100e6  # three hours as float32 are 690 MB


def test_memory_is_bounded_for_any_sample_rate(server: Server) -> None:
    before = resident(server)
    for rate in range(1001, 1039, 2):
        assert server.post(encoded(np.zeros(rate, dtype=np.int16), rate=rate)).status_code == 200
    assert resident(server) - before < 50e6


def resident(server: Server) -> float:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def test_among_many_concurrent_requests_only_bad_ones_fail(server: Server) -> None:
    huge = encoded(speak("abcd ef").astype(np.float64) * 1e30, subtype="DOUBLE")
    with ThreadPoolExecutor(40) as clients:
        responses = list(clients.map(server.post, ([SAID] * 9 + [huge]) * 12))
    for number, response in enumerate(responses):
        if number % 10 == 9:
            assert response.status_code == 422
            assert line(response).startswith("file: ")
        else:
            assert response.json()["text"] == "abcd ef"


# ---- names


NAMES = [
    "../../../../etc/passwd",
    "/etc/passwd",
    "..\\..\\boot.ini",
    "a\x00b.wav",
    "Grüße aus 東京 🎤.wav",
    "\u202egpj.wav",
    "x" * 2000 + ".wav",
    "%2e%2e%2fetc%2fpasswd",
    "<script>alert(1)</script>.wav",
    'a"b.wav',
    "line\nbreak.wav",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:40]))
def test_a_file_name_is_only_returned_and_never_used(server: Server, name: str) -> None:
    response = server.post(SAID, name)
    assert response.status_code == 200
    assert response.json()["text"] == "abcd ef"
    assert unquote(response.json()["id"]).replace("\\\\", "\\") == unquote(name)  # httpx escapes some characters


# ---- forms


def post(server: Server, **given: Any) -> httpx.Response:
    return httpx.post(f"{server.address}/transcribe", timeout=30, **given)


def test_a_body_that_is_not_a_form_has_status_415(server: Server) -> None:
    for given in ({"content": SAID}, {"json": {"file": "x"}}, {"data": {"file": "x"}}, {}):
        response = post(server, **given)
        assert response.status_code == 415
        assert mentions(line(response), "multipart/form-data ... `file`")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("audio", ("a.wav", SAID))], "got 'audio'"),
        ([("file", ("a.wav", SAID)), ("file", ("b.wav", SAID))], "got 2 of them"),
        ([("file", ("a.wav", SAID)), ("more", ("b.wav", SAID))], "got 'more'"),
        ([("\u202e<b>" * 100, ("a.wav", SAID))], "…'"),
    ],
    ids=["wrong field", "two files", "another field", "strange field"],
)
def test_a_form_must_have_exactly_one_file(server: Server, files: list[Any], message: str) -> None:
    response = post(server, files=files)
    assert response.status_code == 422
    assert mentions(line(response), f"one recording ... `file` ... {message}")


@pytest.mark.parametrize("content", [b"hello", bytes(100_000)])
def test_a_field_without_a_file_name_is_not_a_file(content: bytes, server: Server) -> None:
    body = multipart(content, name='name="file"')
    response = post(server, content=body, headers={"content-type": "multipart/form-data; boundary=b0undary"})
    assert response.status_code == 422
    assert "no file name" in line(response)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("filename*=utf-8''K%C3%B6ln.wav", "Köln.wav"),
        ("filename*=iso-8859-1'de'K%F6ln.wav", "Köln.wav"),
        ("filename=\"a.wav\"; filename*=utf-8''K%C3%B6ln.wav", "a.wav"),
        ("FILENAME*=UTF-8''a%22b.wav", 'a"b.wav'),
        ('filename*0="a"; filename*1="b.wav"', "ab.wav"),
    ],
)
def test_a_file_name_may_be_encoded_as_in_rfc_8187(given: str, name: str, server: Server) -> None:
    body = multipart(SAID, name=f'name="file"; {given}')
    response = post(server, content=body, headers={"content-type": "multipart/form-data; boundary=b0undary"})
    assert response.status_code == 200, response.text
    assert response.json()["id"] == name


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", multipart(SAID)),
        ("multipart/form-data; boundary=", multipart(SAID)),
        ("multipart/form-data; boundary=other", multipart(SAID)),
        ("multipart/form-data; boundary=b0undary", b""),
        ("multipart/form-data; boundary=b0undary", b"--b0undary\r\nnot a header\r\n\r\nx\r\n--b0undary--\r\n"),
        (
            "multipart/form-data; boundary=b0undary",
            b"--b0undary\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b0undary--",
        ),
        ("multipart/form-data; boundary=b0undary", b"--b0undary\r\n\r\nx\r\n--b0undary--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 100_00, multipart(SAID)),
        ("multipart/form-data; boundary=b0undary; charset=nonsense", b"\x00" * 1000),
    ],
    ids=range(9),
)
def test_a_malformed_form_is_refused(server: Server, content_type: str, body: bytes) -> None:
    response = post(server, content=body, headers={"content-type": content_type})
    assert response.status_code in (400, 422)
    assert line(response)


def test_an_incomplete_form_is_refused(server: Server) -> None:
    body = multipart(SAID)[:-200]
    response = post(server, content=body, headers={"content-type": "multipart/form-data; boundary=b0undary"})
    assert response.status_code in (400, 422)


def test_a_form_of_many_parts_is_refused(server: Server) -> None:
    for most in (3, 2000):
        response = post(server, files=[(f"field{number}", ("a.wav", b"x")) for number in range(most)])
        assert response.status_code == 400
        assert "maximum number of files is 2" in line(response).lower()


@pytest.mark.parametrize(
    "query", ["nbest=0", "nbest=-1", "nbest=x", "nbest=1e9", "nbest=", "nbst=2", "nbest=2", "n=%ff%0a"]
)
def test_query_parameters_are_checked(server: Server, query: str) -> None:
    response = post(server, files={"file": ("a.wav", SAID)}, params=query)
    assert response.status_code == 422
    assert query.split("=")[0] in line(response)
    if query.split("=")[0] != "nbest":
        assert "/docs" in line(response), "the error of an unknown parameter names the page that lists them"


def test_unknown_addresses_and_methods_are_refused(server: Server) -> None:
    for path in ("/nowhere", "/transcribe/", "/examples/0", "/examples/x", "/docs/assets/../../../etc/passwd"):
        response = server.get(path)
        assert response.status_code in (404, 422), path
        assert line(response)
    for method, path in (("GET", "/transcribe"), ("PUT", "/transcribe"), ("POST", "/health"), ("DELETE", "/")):
        response = httpx.request(method, f"{server.address}{path}")
        assert response.status_code == 405
        assert response.headers["allow"] in line(response)


# ---- transmission of the bytes


def chunks(total: int) -> Iterator[bytes]:
    yield multipart(b"")[: -len(b"\r\n--b0undary--\r\n")]
    for _ in range(total // 1_000_000):
        yield bytes(1_000_000)
    yield b"\r\n--b0undary--\r\n"


def test_a_gigabyte_without_a_declared_length_is_refused_at_the_size_limit(server: Server) -> None:
    before = resident(server)
    headers = {"content-type": "multipart/form-data; boundary=b0undary"}
    # the body is sent in chunks, without a declared length
    response = post(server, content=chunks(1_000_000_000), headers=headers)
    assert response.status_code == 413
    assert "at most 3 megabytes" in line(response)
    assert resident(server) - before < 50e6


def test_a_declared_length_beyond_the_limit_is_refused_before_the_body_is_sent(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(request_head("Content-Length: 1000000000", "Expect: 100-continue"))
        status, body = answer(connection)
    assert status == 413
    assert "at most 3 megabytes" in one_line(body)


def test_a_client_that_sends_everything_before_it_reads_gets_the_refusal(server: Server) -> None:
    body = multipart(bytes(20_000_000))
    with server.connect() as connection:
        connection.sendall(request_head(f"Content-Length: {len(body)}"))
        connection.sendall(body)  # the whole body, before the answer is read
        time.sleep(0.3)
        status, reply = answer(connection)
    assert status == 413
    assert "at most 3 megabytes" in one_line(reply)


def test_a_slow_upload_times_out(server: Server) -> None:
    body = multipart(SAID)
    began = time.monotonic()
    with server.connect() as connection:
        connection.sendall(request_head(f"Content-Length: {len(body)}"))
        connection.settimeout(0.2)
        status, reply = None, b""
        for byte in body[:200]:
            try:
                connection.sendall(bytes([byte]))
                status, reply = answer(connection)
                break
            except TimeoutError:
                continue
    assert status == 408
    assert "within 2 seconds" in one_line(reply)
    assert UPLOAD_SECONDS - 0.1 < time.monotonic() - began < UPLOAD_SECONDS + 5


def test_an_upload_that_is_cut_off_is_logged_and_leaves_nothing(server: Server) -> None:
    body = multipart(bytes(2_500_000))  # so large that the server writes it to a file
    for how in (b"", body[:100], body[:2_000_000], body[:-1]):
        connection = server.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        connection.sendall(request_head(f"Content-Length: {len(body)}") + how)
        time.sleep(0.1)
        connection.close()
    server.wait_for_log(r"POST /transcribe 499")


def test_an_invalid_declared_length_is_refused(server: Server) -> None:
    for length in ("9" * 5000, "-1", "1e3", "\u00b2"):
        with server.connect() as connection:
            connection.sendall(request_head(f"Content-Length: {length}"))
            connection.settimeout(10)
            assert connection.recv(4096).split(b"\r\n")[0].split()[1] in (b"400", b"413")


def test_a_full_disk_is_reported(server: Server) -> None:
    before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        for size in (200_000, 2_500_000):  # an upload above a megabyte is written to a file while it arrives
            response = server.post(bytes(size))
            assert response.status_code == 507
            assert "no space left" in line(response)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)


def test_requests_that_are_not_http_do_not_stop_the_server(server: Server) -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        bytes(1000),
        b"POST /transcribe HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # this request has no Host header
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        request_head("Transfer-Encoding: chunked") + b"no number\r\n",
    ):
        with server.connect() as connection:
            connection.sendall(nonsense)
            connection.settimeout(5)
            head, _, body = connection.recv(4096).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ")
            assert b"content-type: application/json" in head.lower()
            assert [*json.loads(body)] == ["detail"]


def test_an_invalid_chunk_after_the_answer_is_not_an_internal_error(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(request_head("Transfer-Encoding: chunked", "Content-Type: text/plain") + b"1\r\na\r\n")
        connection.settimeout(5)
        assert connection.recv(4096).startswith(b"HTTP/1.1 4")
        connection.sendall(b"no number\r\n")
    assert server.get("/health").status_code == 200
    assert "Traceback" not in server.log.read_text()


def test_a_malformed_body_in_the_packet_of_its_request_is_answered_once(server: Server) -> None:
    for path in ("/health", "/transcribe", "/nowhere"):
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        with server.connect() as connection:
            connection.sendall(head.encode() + b"no number\r\n")
            connection.settimeout(5)
            with connection.makefile("rb") as answers:
                assert answers.read().count(b"HTTP/1.1 ") == 1
    assert "Traceback" not in server.log.read_text()


def test_a_malformed_handshake_is_answered_like_other_errors(server: Server) -> None:
    head = b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    for more in (b"", b"Sec-WebSocket-Key: short\r\n", b"Sec-WebSocket-Version: 1\r\n"):
        with server.connect() as connection:
            connection.sendall(head + more + b"\r\n")
            connection.settimeout(5)
            answer, _, body = connection.recv(4096).partition(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 4")
            assert [*json.loads(body)] == ["detail"]
