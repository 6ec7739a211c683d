"""Files by path or URL: sizes, byte ranges, whole files. A request is answered in full, or a StoreError is raised.

Paths of this machine are read by `os.pread`. `s3://BUCKET/KEY` takes endpoint, region and credentials from the usual
environment variables (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_SKIP_SIGNATURE for public buckets), as do gs:// and az://, which were not tried. Profiles in ~/.aws are not read:
`eval "$(aws configure export-credentials --format env)"` puts one into the environment.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import BinaryIO

from asr.errors import StoreError, one_line
from asr.storage.byte_range import ByteRange
from asr.storage.cache import range_cache
from asr.storage.client import (
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
from asr.storage.location import is_url
from asr.storage.session import ask, current_settings
from asr.system.files import write_shared
from asr.system.files import write_whole as write_whole_file

MERGE_GAP = 1 << 16  # bytes between two ranges that are cheaper fetched than left out: a millisecond


def size_and_etag(path: str) -> ObjectInfo:
    """Return a file's size in bytes and its version, which is another one after the file has been written anew.

    The version is the ETag; of a file of this machine, or of a web server without ETags, when it was modified. It is
    None where a web server does not say even that.

    Raises:
        StoreError: there is no such file, or its store cannot be read.
    """
    if is_url(path):
        [info] = ask([Stat(path)])
        return info
    with _opened(path) as descriptor:
        return _local_info(descriptor)


def sizes_and_etags(paths: Sequence[str]) -> list[ObjectInfo]:
    """Return what `size_and_etag` does for each of several files; those of object stores are asked for at once.

    Raises:
        StoreError: as `size_and_etag`, of the first that failed.
    """
    urls = [path for path in paths if is_url(path)]
    answers = iter(ask([Stat(url) for url in urls]) if urls else [])
    return [next(answers) if is_url(path) else size_and_etag(path) for path in paths]


def read_range(path: str, start: int, num_bytes: int, *, etag: str | None = None) -> bytes:
    """Read bytes `start` to `start + num_bytes` of a file.

    Args:
        path: or URL of the file.
        start: the first of the bytes.
        num_bytes: how many.
        etag: version that the file must have, of `size_and_etag`; None: any.

    Raises:
        StoreError: the file is absent, shorter, of another version, or its store cannot be read.
    """
    return read_ranges([ByteRange(path, start, num_bytes, etag)])[0]


def read_ranges(ranges: Sequence[ByteRange]) -> list[bytes]:
    """Read byte ranges of any files, those of object stores at once; neighbours in a file are one request.

    Raises:
        StoreError: as for `read_range`, of the first that failed.
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
    """Read whole files, those of object stores at once.

    Raises:
        StoreError: as for `read_range`, of the first that failed.
    """
    urls = [path for path in dict.fromkeys(paths) if is_url(path)]
    contents: dict[str, bytes] = {}
    if urls and current_settings().cache_dir is None:
        beginnings: list[Fetched] = ask([Get(url, 0, REQUEST_BYTES, is_open=True) for url in urls])
        contents = {url: beginning.content for url, beginning in zip(urls, beginnings, strict=True)}
        infos = [beginning.info for beginning in beginnings]
    else:  # what is kept is found by its version
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


def list_prefix(url: str) -> list[tuple[str, int]]:
    """List the objects below a URL as pairs of URL and size in bytes, sorted.

    Raises:
        StoreError: they cannot be listed.
    """
    [objects] = ask([Listing(url)])
    return objects


def write_whole(path: str, content: bytes | Path) -> None:
    """Write a file or an object, whole or not at all.

    Args:
        path: or URL of the file.
        content: of it; a path: of a file of this machine that has it.

    Raises:
        StoreError: it cannot be written.
    """
    if is_url(path):
        ask([Put(path, content)])
        return
    try:
        write_whole_file(Path(path), lambda file: file.writelines(_blocks(content)))
    except OSError as error:
        raise StoreError(f"{path}: must be written; {error.strerror}.") from None


def write_together(path: str, content: bytes, *, is_new: bool = False) -> bool:
    """Write a small file or an object, whole or not at all, though other processes may do so at the same time.

    Args:
        path: or URL of the file; the folder of a file must be there.
        content: of it.
        is_new: write only if there is no such file yet.

    Returns:
        Whether it was written. Of an object, False may also mean that the store's answer to an earlier attempt of this
        call was lost.

    Raises:
        StoreError: an object cannot be written.
        OSError: a file cannot be written.
    """
    if is_url(path):
        [is_written] = ask([Put(path, content, is_new)])
        return bool(is_written)
    return write_shared(Path(path), content, is_new=is_new)


def download(path: str, target: Path) -> None:
    """Write a copy of a file or an object to this machine, whole or not at all; memory is bounded.

    Raises:
        StoreError: it cannot be read.
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
    """Fetch ranges of objects; a request takes several neighbours, or a part of a long one."""
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
    """Return the requests that `read_ranges` makes for ranges that are all in object stores, and not in the cache."""
    return [request for group in _neighbours(list(dict.fromkeys(ranges))) for request in _requests(group)]


def _requests(group: Sequence[ByteRange]) -> list[Get]:
    """Return the requests for a group of neighbours."""
    path, start, _, etag = group[0]
    stop = max(wanted.stop for wanted in group)
    return [Get(path, begin, end, etag) for begin, end in pairwise([*range(start, stop, REQUEST_BYTES), stop])]


def _neighbours(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Group ranges of the same version of a file that overlap or lie MERGE_GAP apart at most, but for empty ones."""
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


# ---- files of this machine


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a file of this machine; what the system says against it is a StoreError."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise StoreError(f"{path}: must be a file that can be read; {one_line(error)}.") from None


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
