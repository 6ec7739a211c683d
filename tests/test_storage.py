"""Reading a byte range gives the exact bytes or a one-line error, and never hangs, whatever fault the server has."""

import asyncio
import gc
import http.server
import logging
import multiprocessing
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from asr.base.storage import client, session, store
from asr.base.storage.location import absolute, folder_of, is_url, join, printable_url, without_secrets
from asr.base.storage.store import ByteRange, read_range, read_ranges, read_whole, size_and_etag, write_whole
from asr.core.training.hydra_command import run_job
from asr.errors import AudioError, InputError, StoreError
from tests.refusals import mentions, refused
from tests.storing import FaultyProxy, storage

CONTENT = random.Random(0).randbytes(200_000)
SECRET = "X-Amz-Signature=5ec2e7"  # the signature of a signed URL

# Temporary faults, which servers with and without ETags can have.
PASSING = ("slow_down", "reset", "cut", "reset_within", "ignore_range", "shorten")
HANGING = ("hang", "hang_within", "drip")


@pytest.fixture
def url(s3: FaultyProxy, request: pytest.FixtureRequest) -> str:
    """The URL of an object with the bytes CONTENT."""
    url = f"s3://bucket/{request.node.name}.bin"
    write_whole(url, CONTENT)
    s3.requests.clear()
    return url


def requests(s3: FaultyProxy, method: str) -> list[str | None]:
    return [byte_range for used, _, byte_range in s3.requests if used == method]


# ---- reading


def test_reading_a_range_gives_those_bytes_of_the_object_or_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(str(file), CONTENT)
    drawn = random.Random(1)
    for path in (url, str(file)):
        assert read_whole(path) == CONTENT
        assert size_and_etag(path).size == len(CONTENT)
        for _ in range(20):
            start = drawn.randrange(len(CONTENT))
            num_bytes = drawn.randrange(len(CONTENT) - start + 1)
            assert read_range(path, start, num_bytes) == CONTENT[start : start + num_bytes]


def test_ranges_are_returned_in_the_requested_order_and_neighbours_share_a_request(s3: FaultyProxy, url: str) -> None:
    places = [(0, 100), (150_000, 10), (100, 50), (120, 500), (0, 100), (7, 0), (199_999, 1)]
    contents = read_ranges([ByteRange(url, start, num_bytes) for start, num_bytes in places])
    assert contents == [CONTENT[start : start + num_bytes] for start, num_bytes in places]
    assert sorted(map(str, requests(s3, "GET"))) == ["bytes=0-619", "bytes=150000-199999"]


def test_ranges_farther_apart_than_the_gap_are_fetched_concurrently(s3: FaultyProxy, url: str) -> None:
    s3.delay_seconds = 0.3
    ranges = [ByteRange(url, 0, 5), ByteRange(url, 80_000, 5), ByteRange(url, 160_000, 5)]
    assert read_ranges(ranges) == [CONTENT[0:5], CONTENT[80_000:80_005], CONTENT[160_000:160_005]]
    assert len(requests(s3, "GET")) == s3.most_at_once == 3


def test_an_object_larger_than_a_request_is_fetched_in_parts(
    s3: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "REQUEST_BYTES", 70_000)
    write_whole("s3://bucket/large", CONTENT)
    s3.requests.clear()
    assert read_whole("s3://bucket/large") == CONTENT
    assert len(requests(s3, "GET")) == 3
    store.download("s3://bucket/large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_whole_files_of_all_kinds_are_read_concurrently(
    s3: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store, "REQUEST_BYTES", 70_000)
    sizes = {"s3://bucket/some": 1000, "s3://bucket/most": 200_000, "s3://bucket/none": 0, str(tmp_path / "file"): 10}
    for path, size in sizes.items():
        write_whole(path, CONTENT[:size])
    s3.delay_seconds = 0.3
    for cache_dir in (None, str(tmp_path / "cache")):
        session.configure(storage(cache_dir=cache_dir))
        for paths in ([*sizes, *sizes], [], [str(tmp_path / "file")]):
            assert store.read_files(paths) == [CONTENT[: sizes[path]] for path in paths]
    assert s3.most_at_once >= 3


def test_an_empty_object_is_read(s3: FaultyProxy) -> None:
    write_whole("s3://bucket/empty", b"")
    assert read_whole("s3://bucket/empty") == b""
    assert size_and_etag("s3://bucket/empty").size == 0


@pytest.mark.parametrize("key", ["a b+c.flac", "a%20b", "a#b", "ü", "x?y=1&z", "~!*'()[]", "a/b/c.tar"])
def test_a_key_may_contain_any_character(s3: FaultyProxy, key: str) -> None:
    write_whole(f"s3://bucket/keys/{key}", key.encode())
    assert read_whole(f"s3://bucket/keys/{key}") == key.encode()
    assert (f"s3://bucket/keys/{key}", store.size_and_etag(f"s3://bucket/keys/{key}")) in store.list_prefix(
        "s3://bucket/keys"
    )


def test_listing_a_prefix_excludes_names_that_only_begin_with_it(s3: FaultyProxy) -> None:
    for name in ("list/b", "list/a/c", "listed"):
        write_whole(f"s3://bucket/{name}", b"12")
    sizes = [(url, info.size) for url, info in store.list_prefix("s3://bucket/list")]
    assert sizes == [("s3://bucket/list/a/c", 2), ("s3://bucket/list/b", 2)]


def test_a_local_file_is_uploaded_in_parts(s3: FaultyProxy, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT * 40)  # 8 MB: several parts
    write_whole("s3://bucket/from-disk", tmp_path / "large")
    assert read_whole("s3://bucket/from-disk") == CONTENT * 40


def test_an_object_at_a_signed_url_is_read(s3: FaultyProxy, url: str) -> None:
    signed = url.replace("s3://", f"http://127.0.0.1:{s3.port}/") + "?" + SECRET
    assert read_whole(signed) == CONTENT
    assert size_and_etag(signed) == size_and_etag(url)
    assert read_range(signed, 5, 10, etag=size_and_etag(url).etag) == CONTENT[5:15]


def test_pythons_web_server_is_supported_although_it_has_neither_ranges_nor_etags(tmp_path: Path) -> None:
    names = ["plain", "a b#c%20d?.flac", "empty"]
    for name in names:
        (tmp_path / name).write_bytes(b"" if name == "empty" else CONTENT)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in names:
            url = f"http://127.0.0.1:{server.server_port}/{quote(name)}"
            size, version = size_and_etag(url)
            assert read_whole(url) == (tmp_path / name).read_bytes()
            assert size == os.path.getsize(tmp_path / name)
        url = f"http://127.0.0.1:{server.server_port}/plain"
        assert read_range(url, 150_000, 1000, etag=size_and_etag(url).etag) == CONTENT[150_000:151_000]
        version = size_and_etag(url).etag
        os.utime(tmp_path / "plain", (1e9, 1e9))
        with refused(StoreError, "not change"):
            read_range(url, 0, 10, etag=version)
        with refused(StoreError, "404 Not Found"):
            read_range(url + "s", 0, 10)
        with refused(StoreError, "cannot be listed"):
            store.list_prefix(url)
        server.shutdown()


# ---- faults


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("etag", [True, False], ids=["etag", "no etag"])
def test_a_temporary_fault_does_not_change_the_bytes(s3: FaultyProxy, url: str, fault: str, etag: bool) -> None:
    version = size_and_etag(url).etag if etag else None
    for faults in ([fault], ["", fault], [fault, "slow_down", fault]):
        s3.faults.extend(faults)
        read = read_ranges([ByteRange(url, 5, 1000, version), ByteRange(url, 150_000, 1000, version)])
        assert read == [CONTENT[5:1005], CONTENT[150_000:151_000]]
        s3.faults.clear()


def test_without_etags_a_truncated_body_is_fetched_again(s3: FaultyProxy, url: str) -> None:
    s3.faults.extend(["cut_no_etag", "cut_no_etag"])
    s3.forever = "no_etag"
    assert read_range(url, 5, 1000) == CONTENT[5:1005]
    assert len(requests(s3, "GET")) == 3


@pytest.mark.parametrize("fault", HANGING)
def test_a_request_is_repeated_if_the_server_hangs(s3: FaultyProxy, url: str, fault: str) -> None:
    session.configure(storage(retry_seconds=20, timeout_seconds=1))
    s3.faults.append(fault)
    assert read_range(url, 5, 1000) == CONTENT[5:1005]


@pytest.mark.parametrize("fault", [*(fault for fault in PASSING if fault != "ignore_range"), *HANGING])
def test_a_permanent_fault_is_reported_in_one_line_that_names_the_object_and_the_cause(
    s3: FaultyProxy, url: str, fault: str
) -> None:
    session.configure(storage(retry_seconds=1, timeout_seconds=0.5))
    s3.forever = fault
    with pytest.raises(StoreError) as caught:
        read_range(url, 5, 1000)
    causes = {
        "slow_down": "SlowDown",
        "reset": "reset",
        "cut": "early",
        "reset_within": "reset",
        "shorten": "sent",
    }
    message = str(caught.value)
    assert message.startswith(f"{url}: ")
    assert causes.get(fault, "no answer") in message
    assert "\n" not in message


def test_an_absent_server_is_reported_in_one_line() -> None:
    session.configure(storage(retry_seconds=0.5, timeout_seconds=0.5))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with refused(StoreError, "Connection refused"):
        read_range(f"http://127.0.0.1:{port}/x", 5, 1000)


def in_a_child(read: Callable[[], Any]) -> Any:
    """Call a function in a forked process; like a loading process, it may use obstore directly."""
    results: multiprocessing.Queue[Any] = multiprocessing.Queue()
    child = multiprocessing.get_context("fork").Process(target=lambda: results.put(read()))
    child.start()
    result = results.get(timeout=60)
    child.join()
    return result


def test_a_request_for_which_obstore_would_wait_forever_is_abandoned(
    s3: FaultyProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This test disables the time-outs of obstore."""
    monkeypatch.setattr(client, "time_limit", lambda request, settings: 0.5)
    s3.forever = "hang"

    def read() -> str:
        with pytest.raises(StoreError) as caught:
            read_range(url, 0, 10)
        return str(caught.value)

    assert in_a_child(read).endswith("no answer within 0 seconds.")


@pytest.mark.parametrize("fault", ["slow_down", "reset"])
def test_writing_survives_a_temporary_fault(s3: FaultyProxy, fault: str) -> None:
    s3.faults.extend([fault, fault])
    write_whole("s3://bucket/written", CONTENT)
    assert read_whole("s3://bucket/written") == CONTENT


def test_expired_credentials_are_reported_immediately(s3: FaultyProxy, url: str) -> None:
    s3.forever = "expired"
    s3.requests.clear()
    with refused(StoreError, "403 Forbidden, ExpiredToken ... Renew the credentials"):
        read_range(url, 5, 10)
    assert len(s3.requests) == 1


def test_errors_of_requests_after_the_first_failed_one_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these requests fails in the iteration of the event loop in which the first failure cancels it."""

    async def fail(after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        raise FileNotFoundError("absent")

    monkeypatch.setattr(client.Client, "_asked", lambda self, request, settings: fail(int(request.url[-1])))

    def logged() -> list[str]:
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("asyncio").addHandler(handler)
        with refused(StoreError, "s3://bucket/0"):
            client.Client().run([client.Stat(f"s3://bucket/{number}") for number in range(10)], storage())
        gc.collect()
        return records

    assert in_a_child(logged) == []


def test_if_credentials_are_absent_the_error_says_which_variables_to_set(
    s3: FaultyProxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with refused(StoreError, "AWS_ACCESS_KEY_ID ... AWS_SECRET_ACCESS_KEY"):
        read_range(url, 5, 10)


@pytest.mark.parametrize(
    ("wanted", "cause"),
    [
        ("s3://absent/x", "NoSuchBucket"),
        ("s3://bucket/absent", "NoSuchKey"),
        ("s3://bucket/a//b", "empty path segment"),
    ],
)
def test_an_absent_object_or_bucket_is_named(s3: FaultyProxy, wanted: str, cause: str) -> None:
    for read in (lambda: read_range(wanted, 0, 10), lambda: read_whole(wanted)):
        with refused(StoreError, f"{wanted} ... {cause}") as caught:
            read()
        assert not isinstance(caught.value, InputError | AudioError)  # or the utterance would be skipped


@pytest.mark.parametrize("start", [len(CONTENT) - 5, len(CONTENT), len(CONTENT) + 1])
def test_a_range_beyond_the_end_of_an_object_causes_an_error_that_gives_the_needed_and_the_actual_size(
    url: str, start: int, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    for path in (url, str(file)):
        with refused(StoreError, f"{path} ... {start + 10}"):
            read_range(path, start, 10)
    with refused(StoreError, "not be negative"):
        read_range(url, -1, 10)


def test_the_first_of_several_absent_objects_is_named_with_its_bucket(s3: FaultyProxy) -> None:
    """A server answers a HEAD request without saying whether the object or its bucket is absent."""
    write_whole("s3://bucket/a-0.tar", b"shard")
    for _ in range(5):
        with refused(StoreError, "s3://bucket/a-1.tar: 404 Not Found ... bucket bucket"):
            store.sizes_and_etags([f"s3://bucket/a-{number}.tar" for number in range(9)])


def test_a_changed_object_causes_an_error_that_names_it(s3: FaultyProxy, url: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    for path in (url, str(file)):
        version = size_and_etag(path).etag
        assert read_range(path, 0, 5, etag=version) == CONTENT[:5]
        write_whole(path, CONTENT[::-1])
        with refused(StoreError, f"{path} ... change while"):
            read_range(path, 0, 5, etag=version)


def test_a_changed_object_is_detected_even_if_the_server_ignores_conditions(s3: FaultyProxy, url: str) -> None:
    version = size_and_etag(url).etag
    s3.faults.append("other_etag")
    with refused(StoreError, "change while"):
        read_range(url, 0, 5, etag=version)


def test_ranges_are_exact_if_a_server_ignores_them_and_one_warning_says_so(
    s3: FaultyProxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    s3.forever = "ignore_range"
    version = size_and_etag(url).etag

    def read() -> list[str]:
        caplog.set_level(logging.WARNING, logger="asr")
        for start, stop in ((0, 10), (150_000, 150_010), (199_990, 200_000)):
            assert read_range(url, start, stop - start, etag=version) == CONTENT[start:stop]
        with refused(StoreError, "have at least"):
            read_range(url, 199_990, 11, etag=version)
        return [record.getMessage() for record in caplog.records]

    assert in_a_child(read) == ["bucket answers requests for byte ranges with whole objects"]


def test_a_single_answer_with_a_page_instead_of_a_range_is_retried_and_later_requests_are_for_ranges(
    s3: FaultyProxy, url: str
) -> None:
    assert read_range(url, 0, 5) == CONTENT[:5]
    s3.faults.append("html")
    for start in (10, 20, 30):
        assert read_range(url, start, 5) == CONTENT[start : start + 5]
    assert all(extent for method, _, extent in s3.requests if method == "GET")


def test_a_page_instead_of_an_object_is_never_its_content(s3: FaultyProxy, url: str) -> None:
    version = size_and_etag(url).etag
    session.configure(storage(retry_seconds=0.5))
    s3.forever = "html"
    with refused(StoreError, url):
        read_range(url, 0, 5, etag=version)
    with refused(StoreError, "have at least"):
        read_range(url, 100, 5)


def test_an_answer_longer_than_its_range_is_retried(s3: FaultyProxy, url: str) -> None:
    s3.faults.extend(["longer", "longer"])
    assert read_range(url, 3, 7) == CONTENT[3:10]
    session.configure(storage(retry_seconds=0.5))
    s3.forever = "longer"
    with refused(StoreError, "8 bytes instead of 7"):
        read_range(url, 3, 7)


def test_an_encoded_answer_is_refused(s3: FaultyProxy, url: str) -> None:
    s3.forever = "gzip"
    for read in (lambda: read_range(url, 3, 7), lambda: read_whole(url)):
        with refused(StoreError, "without an encoding"):
            read()


def test_an_expired_token_is_reported_although_the_answer_to_head_has_no_body(s3: FaultyProxy, url: str) -> None:
    s3.forever = "expired_400"
    with refused(StoreError, "ExpiredToken ... Renew the credentials"):
        size_and_etag(url)


def test_a_local_path_that_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with refused(StoreError, "can be read"):
            read_range(str(path), 0, 5)


def test_the_helper_is_restarted_if_it_is_killed(url: str) -> None:
    for _ in range(2):
        assert read_range(url, 0, 5) == CONTENT[:5]
        assert isinstance(session._session.access, session._Helper)
        session._session.access._process.kill()
        session._session.access._process.wait()


def test_an_absent_package_is_an_error_that_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session.close()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with refused(InputError, "pip install -e '.[s3]'"):
        read_range("s3://bucket/x", 0, 1)


# ---- secrets


@pytest.mark.parametrize("fault", ["slow_down", "hang", "expired", "cut"])
def test_no_message_contains_a_signature_or_a_password(s3: FaultyProxy, url: str, fault: str) -> None:
    session.configure(storage(retry_seconds=0.5, timeout_seconds=0.3))
    s3.forever = fault
    web = url.replace("s3://", f"http://user:5ec2e7@127.0.0.1:{s3.port}/") + "?" + SECRET
    with pytest.raises(StoreError) as caught:
        read_whole(web)
    assert "5ec2e7" not in str(caught.value)
    assert str(caught.value).startswith(f"http://127.0.0.1:{s3.port}/")


def test_a_command_line_is_logged_without_signatures() -> None:
    command = (
        f"asr.train 'corpus.train=[https://u:5ec2e7@h/a.jsonl?{SECRET},s3://b/x?y]' run_dir=x https://h/b?{SECRET}"
    )
    assert without_secrets(command) == "asr.train 'corpus.train=[https://h/a.jsonl,s3://b/x?y]' run_dir=x https://h/b"


def test_a_training_run_refuses_settings_with_secrets_that_config_yaml_would_store(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run_job(lambda settings: None, {"corpus": {"train": [f"https://h/a.jsonl?{SECRET}"]}})
    error = capsys.readouterr().err
    assert mentions(error, "URL ... no password")
    assert "5ec2e7" not in error


# ---- names


def test_paths_and_urls_are_distinguished() -> None:
    urls = ("s3://b/k", "S3://b/k", "https://h/p", "http://h", "gs://b/k", "az://b/k")
    paths = ("a", "/a/b", "s3:/b", "C:\\x", "hf://owner/name", "a://b", "", Path("s3://b"))
    assert [path for path in (*urls, *paths) if is_url(path)] == [*urls]


@pytest.mark.parametrize(
    ("base", "relative", "joined"),
    [
        ("s3://b/x", "a.flac", "s3://b/x/a.flac"),
        ("s3://b/x/", "../y/a.flac", "s3://b/y/a.flac"),
        ("s3://b", "../../a.flac", "s3://b/a.flac"),
        ("s3://b/x", "./y//a%20b?.flac", "s3://b/x/y/a%20b?.flac"),
        ("s3://b/x", "/data/a.flac", "/data/a.flac"),
        ("s3://b/x", "https://h/a.flac", "https://h/a.flac"),
        ("/data", "s3://b/a.flac", "s3://b/a.flac"),
        ("/data", "../a.flac", "/data/../a.flac"),
        ("https://h/x?sig=1", "a.flac", "https://h/x/a.flac"),
    ],
)
def test_a_path_relative_to_a_folder_is_resolved(base: str, relative: str, joined: str) -> None:
    assert join(base, relative) == joined


def test_the_folder_of_a_file_is_the_part_before_its_name() -> None:
    names = ["s3://b/x/m.jsonl", "s3://b/m.jsonl", "https://h/x/m.jsonl?a=b/c", "/x/m.jsonl", "m.jsonl"]
    assert [folder_of(path) for path in names] == ["s3://b/x", "s3://b", "https://h/x", "/x", "."]


def test_a_printed_url_has_neither_password_nor_query() -> None:
    assert printable_url(f"https://user:secret@h:1/x?{SECRET}#f") == "https://h:1/x"
    assert printable_url("http://[::1?secret") == "http://[::1/"  # not a valid address
    assert printable_url("s3://b/x?y#z") == "s3://b/x?y#z"  # in an S3 URL, "?" and "#" belong to the key
    assert absolute(f"https://h/x?{SECRET}") == "https://h/x"
    assert absolute("x") == os.path.abspath("x")
