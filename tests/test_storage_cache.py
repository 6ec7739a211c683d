"""The cache of byte ranges on a local disk always gives the store's content, whatever happens to the disk."""

import logging
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr.base.storage import session
from asr.base.storage.cache import ABANDONED_SECONDS, MIN_FILES, NUM_FOLDERS, RangeCache, range_cache
from asr.base.storage.location import ByteRange
from asr.base.storage.store import read_range, read_ranges, read_whole, size_and_etag, write_whole
from asr.base.system.files import UNFINISHED
from tests.storing import FaultyProxy, storage

CONTENT = random.Random(0).randbytes(100_000)
URL = "s3://bucket/cached"


@pytest.fixture
def cached(s3: FaultyProxy, tmp_path: Path) -> Iterator[FaultyProxy]:
    """The object at URL has the bytes CONTENT; its ranges are cached in the folder `cache`."""
    session.configure(storage(5, 2, str(tmp_path / "cache")))
    range_cache.cache_clear()
    write_whole(URL, CONTENT)
    s3.requests.clear()
    return s3


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def num_gets(s3: FaultyProxy) -> int:
    return sum(method == "GET" for method, _, _ in s3.requests)


def places(version: str | None) -> list[ByteRange]:
    return [ByteRange(URL, start, 1000, version) for start in range(0, 100_000, 10_000)]


def expected() -> list[bytes]:
    return [CONTENT[start : start + 1000] for start in range(0, 100_000, 10_000)]


def test_fetched_ranges_are_not_fetched_again(cached: FaultyProxy, tmp_path: Path) -> None:
    wanted = places(size_and_etag(URL).etag)
    assert read_ranges(wanted[:5]) == expected()[:5]
    before = num_gets(cached)
    assert read_ranges(wanted[:5]) == expected()[:5]
    assert num_gets(cached) == before
    assert read_ranges(wanted) == expected()
    assert len(files(tmp_path / "cache")) == len(wanted)
    assert read_whole(URL) == CONTENT
    before = num_gets(cached)
    assert read_whole(URL) == CONTENT
    assert num_gets(cached) == before


def test_an_object_that_changed_is_fetched_again(cached: FaultyProxy) -> None:
    assert read_whole(URL) == CONTENT
    write_whole(URL, CONTENT[::-1])
    assert read_whole(URL) == CONTENT[::-1]


def test_a_range_of_unknown_version_is_not_cached(cached: FaultyProxy, tmp_path: Path) -> None:
    assert read_range(URL, 0, 100) == CONTENT[:100]
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "damage", ["truncated", "emptied", "longer", "flipped", "content of another range", "absent", "a folder"]
)
def test_a_damaged_file_is_fetched_again_and_replaced(cached: FaultyProxy, tmp_path: Path, damage: str) -> None:
    wanted = places(size_and_etag(URL).etag)
    read_ranges(wanted)
    paths = files(tmp_path / "cache")
    stored = [path.read_bytes() for path in paths]
    for path, content, other in zip(paths, stored, [*stored[1:], stored[0]], strict=True):
        path.unlink()
        if damage == "a folder":
            path.mkdir()
        elif damage != "absent":
            middle = bytes([content[500] ^ 1])
            flipped = content[:500] + middle + content[501:]
            damaged = {"truncated": content[:-1], "emptied": b"", "longer": content + b"x", "flipped": flipped}
            path.write_bytes(damaged.get(damage, other))
    assert read_ranges(wanted) == expected()
    if damage != "a folder":
        assert [path.read_bytes() for path in paths] == stored


def test_the_least_recently_used_files_are_removed_and_the_size_limit_is_kept(tmp_path: Path) -> None:
    most = NUM_FOLDERS * 10 * 1000  # space for ten ranges in each folder, on average
    cache = RangeCache(tmp_path, most)
    ranges = [ByteRange("s3://bucket/x", start, 900, '"v"') for start in range(1500)]
    used_all_along = ranges[:10]
    for position, wanted in enumerate(ranges):
        cache.put({wanted: bytes(900)})
        os.utime(cache._path(wanted), (position, position))
        for other in cache.get(used_all_along):
            os.utime(cache._path(other), (position, position))
    entries = cache.get(ranges)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= most
    assert {*used_all_along, *ranges[-100:]} <= entries.keys()
    assert len(entries) > 0.7 * most / 1000


def test_a_range_too_large_for_the_cache_is_not_cached(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, NUM_FOLDERS * MIN_FILES * 1000)
    cache.put({ByteRange("s3://bucket/x", 0, size, '"v"'): bytes(size) for size in (1000, 1001)})
    assert len(files(tmp_path)) == 1


def test_a_full_disk_causes_one_warning_and_the_bytes_are_correct(
    cached: FaultyProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files may have at most 500 bytes: writing then fails in the middle, as on a full disk."""
    wanted = places(size_and_etag(URL).etag)
    caplog.set_level(logging.WARNING, logger="asr")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        for _ in range(2):
            assert read_ranges(wanted) == expected()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    [record] = caplog.records
    assert "data.cache_dir" in record.message
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize("location", ["a file", "in a file"])
def test_a_cache_folder_that_cannot_be_created_causes_one_warning(
    cached: FaultyProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "x" if location == "in a file" else tmp_path / "file"
    session.configure(storage(cache_dir=str(place)))
    caplog.set_level(logging.WARNING, logger="asr")
    for _ in range(2):
        assert read_ranges(places(size_and_etag(URL).etag)) == expected()
    assert len(caplog.records) == 1


def write_until_killed(folder: Path) -> None:
    cache = RangeCache(folder, 10**9)
    for start in range(1_000_000):
        cache.put({ByteRange("s3://bucket/x", start % 50, 50_000, '"v"'): bytes([start % 50]) * 50_000})


def test_processes_killed_while_they_write_leave_no_wrong_content(tmp_path: Path) -> None:
    drawn = random.Random(0)
    for _ in range(8):
        writers = [multiprocessing.Process(target=write_until_killed, args=(tmp_path,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(drawn.uniform(0.05, 0.3))
        for writer in writers:
            writer.kill()
            writer.join()
    cache = RangeCache(tmp_path, 10**9)
    wanted = [ByteRange("s3://bucket/x", start, 50_000, '"v"') for start in range(50)]
    contents = cache.get(wanted)
    assert contents
    assert all(content == bytes([place.start]) * 50_000 for place, content in contents.items())


def test_files_left_by_killed_processes_are_removed_after_an_hour(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 10**9)
    wanted = ByteRange("s3://bucket/x", 0, 10, '"v"')
    folder = cache._path(wanted).parent
    folder.mkdir()
    fresh, old = (folder / f".{name}{UNFINISHED}" for name in ("fresh", "old"))
    for path in (fresh, old):
        path.write_bytes(b"part")
    os.utime(old, (time.time() - ABANDONED_SECONDS - 10,) * 2)
    cache.put({wanted: bytes(10)})
    assert fresh.exists()
    assert not old.exists()
