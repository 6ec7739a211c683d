"""Downloads of LibriSpeech from a server with faults; safe and complete unpacking."""

import contextlib
import functools
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from recipes.librispeech import download
from recipes.librispeech.corpus import SUBSETS, Subset
from recipes.librispeech.download import mirror_url
from recipes.librispeech.prepare import main
from tests.refusals import mentions

CHECKOUT = Path(__file__).parents[1]
NUM_UTTERANCES = 4

# ---------------------------------------------------------------- a server with faults
# Each kind of answer is a function of the request's handler and the archive.


def serve(handler: BaseHTTPRequestHandler, content: bytes, upto: int | None = None) -> None:
    """Send the content from the first byte of the request's Range; `upto` closes the connection before that byte."""
    start = range_start(handler)
    if start >= len(content):
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{len(content)}")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.send_header("Content-Length", str(len(content) - start))
    handler.end_headers()
    handler.wfile.write(content[start:upto])


def range_start(handler: BaseHTTPRequestHandler) -> int:
    match = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", "bytes=0-"))
    assert match, handler.headers["Range"]
    return int(match[1])


def drop_before(byte: int) -> Callable[..., None]:
    return functools.partial(serve, upto=byte)


def ignore_range(handler: BaseHTTPRequestHandler, content: bytes, upto: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[:upto])


def begin_at(byte: int) -> Callable[..., None]:
    def answer(handler: BaseHTTPRequestHandler, content: bytes) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {byte}-{len(content) - 1}/{len(content)}")
        handler.end_headers()
        handler.wfile.write(content[byte:])

    return answer


def refuse(status: int) -> Callable[..., None]:
    return lambda handler, content: handler.send_error(status)


def hang_up(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.connection.close()


def redirect(handler: BaseHTTPRequestHandler, content: bytes) -> None:
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.end_headers()


class Mirror:
    """A server that gives each of `answers` once, then always `otherwise`.

    `starts` lists the first byte that each request asks for.
    """

    def __init__(self, content: bytes):
        self.content = content
        self.answers: list[Callable[..., None]] = []
        self.otherwise: Callable[..., None] = serve
        self.starts: list[int] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.starts.append(range_start(self))
                answer = mirror.answers.pop(0) if mirror.answers else mirror.otherwise
                answer(self, mirror.content)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/resources/12/"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


# ---------------------------------------------------------------- a tiny dev-clean


def make_archive(*extra: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Make a tar.gz in LibriSpeech's layout, of about 130 kB: dev-clean with four utterances of noise, and `extra`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        noise = np.random.default_rng(0).uniform(-1, 1, (NUM_UTTERANCES, 16000))
        archive.addfile(*member("LibriSpeech/README.TXT", b"read me"))
        for number, samples in enumerate(noise):
            flac = io.BytesIO()
            soundfile.write(flac, samples, 16000, format="FLAC", subtype="PCM_16")
            archive.addfile(*member(f"LibriSpeech/dev-clean/84/121/84-121-{number:04d}.flac", flac.getvalue()))
        lines = "".join(f"84-121-{number:04d} NOISE\n" for number in range(NUM_UTTERANCES))
        archive.addfile(*member("LibriSpeech/dev-clean/84/121/84-121.trans.txt", lines.encode()))
        for info, content in extra:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def member(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, io.BytesIO(content)


ARCHIVE = make_archive()


def facts(archive: bytes) -> Subset:
    return Subset(NUM_UTTERANCES, 0.0, len(archive), hashlib.md5(archive).hexdigest())


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serve the tiny dev-clean as if it were the published one, without pauses between attempts."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(SUBSETS, "dev-clean", facts(ARCHIVE))
    monkeypatch.setattr(download, "PAUSES_SECONDS", (0.0, 0.0, 0.0))
    mirror = Mirror(ARCHIVE)
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


def arguments(folder: Path, mirror: Mirror, *more: str) -> list[str]:
    folders = ["--corpus-dir", str(folder / "corpus"), "--output-dir", str(folder / "out")]
    return [*folders, "--subsets", "dev-clean", "--download", "--mirror", mirror.url, *more]


def fetch(folder: Path, mirror: Mirror, *more: str) -> int:
    return main(arguments(folder, mirror, *more))


def corpus_contents(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "corpus").iterdir())


def part_of(folder: Path) -> Path:
    part = folder / "corpus" / "dev-clean.tar.gz.part"
    part.parent.mkdir(exist_ok=True)
    return part


# ---------------------------------------------------------------- fetching


def test_a_subset_is_fetched_verified_unpacked_and_prepared(tmp_path, mirror, capsys):
    assert fetch(tmp_path, mirror) == 0
    assert corpus_contents(tmp_path) == ["README.TXT", "dev-clean"]
    assert len((tmp_path / "out" / "dev-clean.jsonl").read_text().splitlines()) == NUM_UTTERANCES
    captured = capsys.readouterr()
    assert "dev-clean: is complete: 4 utterances" in captured.out
    assert mentions(captured.err, "archive was removed ... --keep-archives")


def test_the_archive_is_kept_on_request_and_equals_the_published_one(tmp_path, mirror):
    assert fetch(tmp_path, mirror, "--keep-archives") == 0
    assert corpus_contents(tmp_path) == ["README.TXT", "dev-clean", "dev-clean.tar.gz"]
    assert (tmp_path / "corpus" / "dev-clean.tar.gz").read_bytes() == ARCHIVE


def test_a_subset_is_unpacked_into_an_existing_librispeech_folder(tmp_path, mirror):
    (tmp_path / "corpus" / "LibriSpeech").mkdir(parents=True)
    assert fetch(tmp_path, mirror) == 0
    assert (tmp_path / "corpus" / "LibriSpeech" / "dev-clean" / "84" / "121").is_dir()


def test_a_complete_subset_is_not_fetched_again(tmp_path, mirror, capsys):
    assert fetch(tmp_path, mirror) == 0
    part_of(tmp_path).write_bytes(b"left by a run that was killed at the end")
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0]
    assert mentions(capsys.readouterr().err, "4 FLAC")
    assert not part_of(tmp_path).exists()


def test_an_incomplete_subset_is_an_error_and_not_changed(tmp_path, mirror, capsys):
    audio = tmp_path / "corpus" / "dev-clean" / "84" / "121" / "84-121-0000.flac"
    audio.parent.mkdir(parents=True)
    audio.write_bytes(b"mine")
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "1 of 4 FLAC ... --download")
    assert audio.read_bytes() == b"mine"
    assert mirror.starts == []


def test_an_interrupted_transfer_continues_where_it_stopped(tmp_path, mirror, capsys):
    mirror.answers = [drop_before(50_000), hang_up, drop_before(100_000)]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0, 50_000, 50_000, 100_000]
    assert mentions(capsys.readouterr().err, f"50000 ... {len(ARCHIVE)}")


def test_a_later_run_continues_a_partial_download(tmp_path, mirror):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [70_000]


def test_a_download_continues_after_a_redirect(tmp_path, mirror):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    mirror.answers = [redirect]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [70_000, 70_000]


def test_a_server_that_ignores_range_and_sends_the_whole_file_is_handled(tmp_path, mirror):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    mirror.answers = [ignore_range]
    assert fetch(tmp_path, mirror, "--keep-archives") == 0
    assert (tmp_path / "corpus" / "dev-clean.tar.gz").read_bytes() == ARCHIVE


def test_a_partial_file_that_is_already_complete_is_not_fetched_again(tmp_path, mirror):
    part_of(tmp_path).write_bytes(ARCHIVE)
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == []


def test_a_partial_file_that_is_too_long_is_deleted_and_fetched_again(tmp_path, mirror, capsys):
    part_of(tmp_path).write_bytes(ARCHIVE + b"more")
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0]
    assert mentions(capsys.readouterr().err, "than the archive")


def test_after_status_416_the_whole_file_is_requested(tmp_path, mirror, capsys):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    mirror.answers = [refuse(416)]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [70_000, 0]
    assert mentions(capsys.readouterr().err, "dev-clean.tar.gz.part ... deleted")


def test_an_answer_that_starts_before_the_requested_byte_is_written_at_its_position(tmp_path, mirror):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    mirror.answers = [begin_at(50_000)]
    assert fetch(tmp_path, mirror) == 0


def test_an_answer_that_starts_after_the_requested_byte_is_refused(tmp_path, mirror, capsys):
    part_of(tmp_path).write_bytes(ARCHIVE[:70_000])
    mirror.answers = [begin_at(90_000)]
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "dev-clean.tar.gz ... 70000 ... 'bytes 90000-")
    assert part_of(tmp_path).read_bytes() == ARCHIVE[:70_000]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(tmp_path, mirror, status):
    mirror.answers = [refuse(status)] * 3
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0, 0, 0, 0]


def test_a_server_that_stops_sending_is_asked_again(tmp_path, mirror, monkeypatch, capsys):
    over = threading.Event()

    def fall_silent(handler: BaseHTTPRequestHandler, content: bytes) -> None:
        serve(handler, content, upto=100_000)
        over.wait(10)

    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 1.0)
    mirror.answers = [fall_silent]
    assert fetch(tmp_path, mirror) == 0
    over.set()
    assert mirror.starts == [0, 1 << 16]  # whole chunks were stored
    assert "the connection broke (timed out)" in capsys.readouterr().err


def test_after_four_attempts_without_new_bytes_the_download_ends_and_keeps_the_partial_file(tmp_path, mirror, capsys):
    mirror.answers = [drop_before(60_000)]
    mirror.otherwise = hang_up
    assert fetch(tmp_path, mirror) == 1
    assert mirror.starts == [0] + [60_000] * 3
    assert mentions(capsys.readouterr().err, f"4 ... {len(ARCHIVE)}")
    assert part_of(tmp_path).read_bytes() == ARCHIVE[:60_000]


def test_the_download_fails_if_the_server_ignores_range_and_always_disconnects(tmp_path, mirror, capsys):
    mirror.otherwise = functools.partial(ignore_range, upto=60_000)
    assert fetch(tmp_path, mirror) == 1
    assert len(mirror.starts) == 4
    assert "gave up" in capsys.readouterr().err


def test_attempts_with_new_bytes_do_not_count_towards_the_limit(tmp_path, mirror):
    mirror.answers = [drop_before(byte) for byte in range(10_000, 110_000, 10_000)]
    assert fetch(tmp_path, mirror) == 0
    assert len(mirror.starts) == 11


@pytest.mark.parametrize("status", [403, 404])
def test_a_mirror_without_the_archive_is_asked_only_once(tmp_path, mirror, capsys, status):
    mirror.otherwise = refuse(status)
    assert fetch(tmp_path, mirror) == 1
    assert mirror.starts == [0]
    err = capsys.readouterr().err
    assert mentions(err, f"{mirror.url}dev-clean.tar.gz ... {status}")


def test_a_mirror_that_refuses_connections_is_reported_in_one_line(tmp_path, mirror, capsys):
    mirror.server.server_close()
    assert fetch(tmp_path, mirror) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Connection refused); gave up after 4 attempts" in last
    assert "or choose another --mirror." in last


def test_a_web_page_instead_of_the_archive_is_refused_because_of_its_size(tmp_path, mirror, capsys):
    mirror.content = b"<html>Please log in.</html>"
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"{len(ARCHIVE)} ... 27 ... --mirror")


def test_an_endless_answer_without_a_length_is_cut_off(tmp_path, mirror, capsys):
    def endless(handler: BaseHTTPRequestHandler, content: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client closes the connection
            while True:
                handler.wfile.write(content)

    mirror.otherwise = endless
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"{len(ARCHIVE)} ... server sent")


def test_an_archive_with_another_checksum_is_deleted_and_not_unpacked(tmp_path, mirror, capsys):
    mirror.content = ARCHIVE[:-1] + bytes([ARCHIVE[-1] ^ 1])
    assert fetch(tmp_path, mirror) == 1
    err = capsys.readouterr().err
    assert mentions(err, f"{facts(ARCHIVE).md5} ... {facts(mirror.content).md5}")
    assert "and was deleted" in err
    assert corpus_contents(tmp_path) == []


def test_an_existing_archive_is_used_and_kept(tmp_path, mirror):
    archive = part_of(tmp_path).with_suffix("")
    archive.write_bytes(ARCHIVE)
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == []
    assert corpus_contents(tmp_path) == ["README.TXT", "dev-clean", "dev-clean.tar.gz"]


def test_a_damaged_existing_archive_is_an_error_and_not_deleted(tmp_path, mirror, capsys):
    archive = part_of(tmp_path).with_suffix("")
    archive.write_bytes(ARCHIVE[:-1])
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "then downloads")
    assert corpus_contents(tmp_path) == ["dev-clean.tar.gz"]


def test_insufficient_disk_space_is_reported_before_the_download(tmp_path, mirror, monkeypatch, capsys):
    monkeypatch.setitem(SUBSETS, "dev-clean", Subset(NUM_UTTERANCES, 0.0, 10**18, "0" * 32))
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "2100000000.0 ... dev-clean.tar.gz")
    assert mirror.starts == []


# The archives take 1 and 2 PB. The space needed is that of the unpacked files, 1.1 * (1 + 2) PB, plus the larger
# archive, or plus both archives with --keep-archives.
@pytest.mark.parametrize(("options", "needed"), [([], "5300000.0 GB"), (["--keep-archives"], "6300000.0 GB")])
def test_the_disk_must_have_space_for_one_archive_at_a_time_or_for_all_that_are_kept(
    tmp_path, mirror, monkeypatch, capsys, options, needed
):
    for name, size in {"dev-clean": 10**15, "dev-other": 2 * 10**15}.items():
        monkeypatch.setitem(SUBSETS, name, Subset(NUM_UTTERANCES, 0.0, size, "0" * 32))
    assert fetch(tmp_path, mirror, "--subsets", "dev-clean", "dev-other", *options) == 1
    assert needed in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--subsets", "dev-clan"], "--download ... --subsets"),
        (["--subsets", "dev-clean", "train-mini"], "dev-clean-2; got train-mini"),
        ([], "dev-clean-2; got no --subsets"),
        (["--subsets", "dev-clean", "--mirror", "moon"], "--mirror ... of openslr"),
        (["--subsets", "dev-clean", "--mirror", "file:///etc"], "or an http(s) URL; got 'file:///etc'"),
        (["--subsets", "dev-clean", "--mirror", "ftp://host/12"], "or an http(s) URL; got 'ftp://host/12'"),
        (["--subsets", "dev-clean", "--mirror", "http://host:port/"], "or an http(s) URL; got 'http://host:port/'"),
    ],
)
def test_an_unknown_subset_or_mirror_is_reported_in_one_line(tmp_path, capsys, given, message):
    folders = ["--corpus-dir", str(tmp_path / "corpus"), "--output-dir", str(tmp_path / "out")]
    assert main([*folders, "--download", *given]) == 1
    err = capsys.readouterr().err
    assert mentions(err, message)
    assert err.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


def test_the_mirrors_are_those_of_openslr():
    assert mirror_url("eu", 12) == "https://openslr.elda.org/resources/12"
    assert mirror_url("http://127.0.0.1:8000/copy/", 12) == "http://127.0.0.1:8000/copy"


# ---------------------------------------------------------------- unpacking


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def file(name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = 4
    return info, b"evil"


def device(name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = tarfile.FIFOTYPE
    return info, b""


@pytest.mark.parametrize(
    ("extra", "named", "why"),
    [
        ([file("../evil")], "../evil", "leads out"),
        ([file("LibriSpeech/../../evil")], "LibriSpeech/../../evil", "leads out"),
        ([file("/tmp/librispeech-evil")], "/tmp/librispeech-evil", "leads out"),
        ([link("LibriSpeech/out", ".."), file("LibriSpeech/out/evil")], "LibriSpeech/out", "is a link"),
        ([link("LibriSpeech/out", "/")], "LibriSpeech/out", "is a link"),
        ([link("LibriSpeech/dev-clean/in", "84")], "LibriSpeech/dev-clean/in", "is a link"),
        ([link("LibriSpeech/hard", "../evil", tarfile.LNKTYPE)], "LibriSpeech/hard", "is a link"),
        ([device("LibriSpeech/dev-clean/fifo")], "LibriSpeech/dev-clean/fifo", "is a link"),
    ],
)
def test_an_archive_member_that_leaves_the_folder_or_is_a_link_is_refused(
    tmp_path, mirror, monkeypatch, capsys, extra, named, why
):
    mirror.content = make_archive(*extra)
    monkeypatch.setitem(SUBSETS, "dev-clean", facts(mirror.content))
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"{named!r} {why}")
    assert corpus_contents(tmp_path) == ["dev-clean.tar.gz.part"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"]
    assert not Path("/tmp/librispeech-evil").exists()


@pytest.mark.parametrize("content", [ARCHIVE[:90_000], b"no archive at all" * 1000, b""])
def test_an_archive_that_cannot_be_unpacked_leaves_no_subset(tmp_path, mirror, monkeypatch, capsys, content):
    monkeypatch.setitem(SUBSETS, "dev-clean", facts(content))
    part_of(tmp_path).write_bytes(content)
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "can be unpacked")
    assert corpus_contents(tmp_path) == ["dev-clean.tar.gz.part"]


def test_an_archive_without_the_subset_is_an_error(tmp_path, mirror, monkeypatch, capsys):
    monkeypatch.setitem(SUBSETS, "dev-other", facts(ARCHIVE))
    archive = part_of(tmp_path).with_name("dev-other.tar.gz")
    archive.write_bytes(ARCHIVE)
    assert fetch(tmp_path, mirror, "--subsets", "dev-other") == 1
    assert mentions(capsys.readouterr().err, "dev-other.tar.gz ... LibriSpeech/dev-other")
    assert corpus_contents(tmp_path) == ["dev-other.tar.gz"]


def test_an_existing_readme_is_not_overwritten(tmp_path, mirror):
    readme = part_of(tmp_path).with_name("README.TXT")
    readme.write_text("mine")
    assert fetch(tmp_path, mirror) == 0
    assert readme.read_text() == "mine"


# ---------------------------------------------------------------- killed and interrupted

# The command in another process, with our tiny dev-clean; `stop_unpacking` makes it sleep while it unpacks.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
from recipes.librispeech import corpus, prepare, unpack
corpus.SUBSETS["dev-clean"] = corpus.Subset({facts})
def stop_at(tar, member, target, extract=unpack.extract):
    if member.name.endswith("0002.flac"):
        print("half unpacked", flush=True)
        for _ in range(600):  # Python 3.14 does not begin one long sleep anew for a signal that has just arrived
            time.sleep(0.1)
    extract(tar, member, target)
if {stop_unpacking}:
    unpack.extract = stop_at
sys.exit(prepare.main(sys.argv[1:]))
"""


def start(folder: Path, mirror: Mirror, *, stop_unpacking: bool) -> subprocess.Popen[str]:
    values = facts(ARCHIVE)
    listed = f"{values.num_utterances}, {values.hours}, {values.archive_bytes}, {values.md5!r}"
    program = PROGRAM.format(facts=listed, stop_unpacking=stop_unpacking)
    command = [sys.executable, "-c", program, *arguments(folder, mirror)]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_a_run_killed_while_it_unpacks_leaves_no_subset_and_the_next_run_succeeds(tmp_path, mirror):
    process = start(tmp_path, mirror, stop_unpacking=True)
    assert process.stdout.readline() == "half unpacked\n"
    process.kill()
    process.communicate(timeout=30)
    assert corpus_contents(tmp_path) == [".dev-clean.unpacking", "dev-clean.tar.gz.part"]
    assert len(list((tmp_path / "corpus" / ".dev-clean.unpacking").rglob("*.flac"))) == 2
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0]
    assert corpus_contents(tmp_path) == ["README.TXT", "dev-clean"]


def test_a_run_interrupted_while_it_unpacks_cleans_up_and_exits_with_130_without_a_traceback(tmp_path, mirror):
    process = start(tmp_path, mirror, stop_unpacking=True)
    assert process.stdout.readline() == "half unpacked\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert mentions(err, "command again")
    assert "Traceback" not in err
    assert corpus_contents(tmp_path) == ["dev-clean.tar.gz.part"]


def test_an_interrupted_download_keeps_its_partial_file_and_exits_with_130_without_a_traceback(tmp_path, mirror):
    stalled, over = threading.Event(), threading.Event()

    def stall(handler: BaseHTTPRequestHandler, content: bytes) -> None:
        serve(handler, content, upto=100_000)
        stalled.set()
        over.wait(30)

    mirror.answers = [stall]
    process = start(tmp_path, mirror, stop_unpacking=False)
    assert stalled.wait(30)
    while not part_of(tmp_path).exists() or part_of(tmp_path).stat().st_size < 1 << 16:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    over.set()
    assert process.returncode == 130
    assert "Traceback" not in err
    content = part_of(tmp_path).read_bytes()
    assert ARCHIVE.startswith(content)
    assert len(content) >= 1 << 16
