"""Sizes, byte ranges and contents of files, by path or URL. Functions return complete data or raise a StoreError.

Local files are read by `os.pread`. For `s3://BUCKET/KEY`, environment variables set endpoint, region and credentials:
AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, and AWS_SKIP_SIGNATURE for
public buckets. gs:// and az:// use the environment variables of their services; they were not tested. Profiles in
~/.aws are not read: `eval "$(aws configure export-credentials --format env)"` exports a profile to the environment.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import BinaryIO

from asr.base.storage.cache import range_cache
from asr.base.storage.client import (
    MODIFIED,
    REQUEST_BYTES,
    Fetched,
    Get,
    Listing,
    ObjectInfo,
    Put,
    Stat,
    check_end,
    check_version,
)
from asr.base.storage.location import ByteRange, is_url
from asr.base.storage.session import ask, current_settings
from asr.base.system.files import write_shared
from asr.base.system.files import write_whole as write_whole_file
from asr.errors import StoreError, one_line

MERGE_GAP = 1 << 16  # maximum gap between two ranges of a request, bytes; its transfer takes about a millisecond


def size_and_etag(path: str) -> ObjectInfo:
    """Return a file's size in bytes and its version, which changes whenever the file is written.

    The version is the ETag; for a local file or a web server without ETags, it is the time of modification. The version
    is None if a web server sends neither.

    Raises:
        StoreError: the file does not exist, or its store cannot be read.
    """
    if is_url(path):
        [info] = ask([Stat(path)])
        return info
    with _opened(path) as descriptor:
        return _local_info(descriptor)


def sizes_and_etags(paths: Sequence[str]) -> list[ObjectInfo]:
    """Return `size_and_etag` of each file; requests to object stores are concurrent.

    Raises:
        StoreError: as for `size_and_etag`, for the first file that failed.
    """
    urls = [path for path in paths if is_url(path)]
    answers = iter(ask([Stat(url) for url in urls]) if urls else [])
    return [next(answers) if is_url(path) else size_and_etag(path) for path in paths]


def read_range(path: str, start: int, num_bytes: int, *, etag: str | None = None) -> bytes:
    """Read bytes `start` to `start + num_bytes` of a file.

    Args:
        path: path or URL of the file.
        start: position of the first byte.
        num_bytes: number of bytes.
        etag: version that the file must have, from `size_and_etag`; None: any version.

    Raises:
        StoreError: the file is absent, is too short or has another version, or its store cannot be read.
    """
    return read_ranges([ByteRange(path, start, num_bytes, etag)])[0]


def read_ranges(ranges: Sequence[ByteRange]) -> list[bytes]:
    """Read byte ranges of files; requests to object stores are concurrent, and neighbouring ranges share a request.

    Raises:
        StoreError: as for `read_range`, for the first range that failed.
    """
    for wanted in ranges:
        if wanted.start < 0 or wanted.num_bytes < 0:
            must = f"{wanted.path}: a byte range must not be negative"
            raise StoreError(f"{must}; got {wanted.num_bytes} bytes from {wanted.start}.")
    contents = {wanted: _read_local(wanted) for wanted in ranges if not is_url(wanted.path)}
    remote = [wanted for wanted in dict.fromkeys(ranges) if is_url(wanted.path)]
    cache = range_cache(current_settings()) if remote else None
    if cache is None:
        contents |= _fetch(remote)
    else:
        contents |= cache.get(remote)
        fetched = _fetch([wanted for wanted in remote if wanted not in contents])
        cache.put(fetched)
        contents |= fetched
    return [contents[wanted] for wanted in ranges]


def read_whole(path: str) -> bytes:
    """Read a whole file.

    Raises:
        StoreError: as for `read_range`.
    """
    return read_files([path])[0]


def read_files(paths: Sequence[str]) -> list[bytes]:
    """Read whole files; requests to object stores are concurrent.

    Raises:
        StoreError: as for `read_range`, for the first file that failed.
    """
    urls = [path for path in dict.fromkeys(paths) if is_url(path)]
    contents: dict[str, bytes] = {}
    if urls and current_settings().cache_dir is None:
        beginnings: list[Fetched] = ask([Get(url, 0, REQUEST_BYTES, is_open=True) for url in urls])
        contents = {url: beginning.content for url, beginning in zip(urls, beginnings, strict=True)}
        infos = [beginning.info for beginning in beginnings]
    else:  # the cache needs the version
        infos = ask([Stat(url) for url in urls]) if urls else []
    rest = {
        url: ByteRange(url, begin, size - begin, version)
        for url, (size, version) in zip(urls, infos, strict=True)
        if (begin := len(contents.get(url, b""))) < size
    }
    for url, content in zip(rest, read_ranges(list(rest.values())), strict=True):
        contents[url] = contents.get(url, b"") + content
    for path in paths:
        if path not in contents:
            contents[path] = b"" if is_url(path) else read_range(path, 0, size_and_etag(path).size)
    return [contents[path] for path in paths]


def list_prefix(url: str) -> list[tuple[str, ObjectInfo]]:
    """List the objects below a URL, sorted, with their sizes and versions.

    Raises:
        StoreError: the objects cannot be listed.
    """
    [objects] = ask([Listing(url)])
    return objects


def write_whole(path: str, content: bytes | Path) -> None:
    """Write a file or an object atomically.

    Args:
        path: path or URL of the file.
        content: bytes, or the path of a local file that contains them.

    Raises:
        StoreError: the file cannot be written.
    """
    if is_url(path):
        ask([Put(path, content)])
        return
    try:
        write_whole_file(Path(path), lambda file: file.writelines(_blocks(content)))
    except OSError as error:
        raise StoreError(f"{path}: must be written; {error.strerror}.") from None


def write_together(path: str, content: bytes, *, is_new: bool = False) -> bool:
    """Write a small file or an object atomically, even if other processes write it at the same time.

    Args:
        path: path or URL of the file; the folder of a local file must exist.
        content: content of the file.
        is_new: whether to write only if the file does not exist.

    Returns:
        Whether the file was written. For an object, False may also mean that the store's answer to an earlier attempt
        of this call was lost.
    """
    if is_url(path):
        [is_written] = ask([Put(path, content, is_new)])
        return bool(is_written)
    return write_shared(Path(path), content, is_new=is_new)


def download(path: str, target: Path) -> None:
    """Copy a file or an object to a local file, atomically and with bounded memory.

    Raises:
        StoreError: the file cannot be read.
        OSError: `target` cannot be written.
    """
    size, version = size_and_etag(path)
    step = 4 * REQUEST_BYTES

    def write(file: BinaryIO) -> None:
        for start in range(0, size, step):
            wanted = ByteRange(path, start, min(step, size - start), version)
            file.write((_fetch([wanted]) if is_url(path) else {wanted: _read_local(wanted)})[wanted])

    write_whole_file(target, write)


# ---- object stores


def _fetch(ranges: Sequence[ByteRange]) -> dict[ByteRange, bytes]:
    """Fetch ranges of objects; a request fetches several neighbouring ranges, or a part of a long range."""
    contents = {wanted: b"" for wanted in ranges if wanted.num_bytes == 0}
    groups = list(_neighbours(ranges))
    requests = [_requests(group) for group in groups]
    answers: Iterator[Fetched] = iter(ask(list(chain(*requests))) if requests else [])
    for group, own in zip(groups, requests, strict=True):
        parts = [answer.content for answer in islice(answers, len(own))]
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        begin = group[0].start
        for wanted in group:
            contents[wanted] = content[wanted.start - begin : wanted.stop - begin]
    return contents


def planned_requests(ranges: Sequence[ByteRange]) -> list[Get]:
    """Return the requests of `read_ranges` for ranges that are in object stores and not in the cache."""
    return [request for group in _neighbours(list(dict.fromkeys(ranges))) for request in _requests(group)]


def _requests(group: Sequence[ByteRange]) -> list[Get]:
    """Return the requests for a group of neighbouring ranges."""
    path, start, _, etag = group[0]
    stop = max(wanted.stop for wanted in group)
    return [Get(path, begin, end, etag) for begin, end in pairwise([*range(start, stop, REQUEST_BYTES), stop])]


def _neighbours(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Group non-empty ranges of one version of a file that overlap or are at most MERGE_GAP apart."""
    group: list[ByteRange] = []
    begin = reach = 0
    filled = [wanted for wanted in ranges if wanted.num_bytes > 0]
    for wanted in sorted(filled, key=lambda wanted: (wanted.path, wanted.etag or "", wanted.start)):
        is_near = wanted.start <= reach + MERGE_GAP and wanted.stop <= begin + REQUEST_BYTES
        if group and not (is_near and (wanted.path, wanted.etag) == (group[0].path, group[0].etag)):
            yield group
            group = []
        if not group:
            begin, reach = wanted.start, 0
        group.append(wanted)
        reach = max(reach, wanted.stop)
    if group:
        yield group


# ---- local files


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a local file; errors of the system become StoreError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for its writer
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = getattr(error, "strerror", None) or one_line(error)
        raise StoreError(f"{path}: must be a file that can be read; {reason}.") from None


def _local_info(descriptor: int) -> ObjectInfo:
    status = os.fstat(descriptor)
    return ObjectInfo(status.st_size, f"{MODIFIED}{status.st_mtime_ns}")


def _read_local(wanted: ByteRange) -> bytes:
    with _opened(wanted.path) as descriptor:
        info = _local_info(descriptor)
        check_version(wanted.path, wanted.etag, info)
        check_end(wanted.path, wanted.stop, info)
        content = b""
        while len(content) < wanted.num_bytes:  # Linux reads at most 2 GiB at a time
            more = os.pread(descriptor, wanted.num_bytes - len(content), wanted.start + len(content))
            if not more:
                raise StoreError(f"{wanted.path}: must not become shorter while it is read.")
            content = content + more if content else more
        return content


def _blocks(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(REQUEST_BYTES):
            yield block
