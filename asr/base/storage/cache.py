"""A cache of objects' byte ranges on a local disk, shared by processes.

Each range is stored as a file, whose name is a hash of URL, version and position. The file begins with a digest of URL,
version, position and content, so a truncated or damaged file is detected and fetched again. Files are written under a
temporary name and then renamed, so a process that is killed leaves no incomplete range. No function raises errors,
because a run without the cache is only slower.
"""

import functools
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from asr.base.storage.location import ByteRange
from asr.base.storage.settings import StorageSettings
from asr.base.system.files import UNFINISHED

NUM_FOLDERS = 64  # each folder has an equal share of the maximum size; to remove files, only one folder is examined
MIN_FILES = 8  # a range is not stored if fewer than this number of ranges of its size would fit into a folder
CHECKED_SHARE = 0.02  # a process checks a folder's size after it has written this share of the folder's maximum size
REMAINING_SHARE = 0.9  # share of a folder's maximum size that remains after files are removed
ABANDONED_SECONDS = 3600.0  # an older unfinished file must be from a killed process
DIGEST_BYTES = 16

logger = logging.getLogger(__name__)


class RangeCache:
    """Files of byte ranges in a folder.

    Args:
        folder: folder of the files; created if absent.
        max_bytes: maximum size of all files; a process may exceed it by CHECKED_SHARE.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.folder_bytes = max_bytes // NUM_FOLDERS
        self._unchecked_bytes: dict[Path, int] = {}
        self._is_full = False

    def get(self, ranges: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
        """Return the contents of all given ranges that are in the cache."""
        contents = {wanted: self._read(wanted) for wanted in ranges if wanted.etag is not None}
        return {wanted: content for wanted, content in contents.items() if content is not None}

    def put(self, contents: Mapping[ByteRange, bytes]) -> None:
        """Store ranges of objects with a known version; after a write error, warn once and store no more."""
        for fetched, content in contents.items():
            if self._is_full or fetched.etag is None or len(content) * MIN_FILES > self.folder_bytes:
                continue
            try:
                self._write(fetched, content)
            except OSError as error:
                self._is_full = True
                without = "fetched data is no longer stored there, and is fetched each time it is needed"
                logger.warning("data.cache_dir %s cannot be written (%s): %s", self.folder, error.strerror, without)

    def _read(self, wanted: ByteRange) -> bytes | None:
        path = self._path(wanted)
        try:
            with path.open("rb", buffering=0) as file:
                stored = file.read(DIGEST_BYTES + wanted.num_bytes + 1)
            content = stored[DIGEST_BYTES:]
            if len(content) == wanted.num_bytes and stored[:DIGEST_BYTES] == _digest(wanted, content):
                os.utime(path)  # time of last use
                return content
            path.unlink()
        except OSError:  # absent, or removed by another process
            pass
        return None

    def _write(self, fetched: ByteRange, content: bytes) -> None:
        path = self._path(fetched)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
        try:
            with unfinished.open("wb", buffering=0) as file:
                for part in (_digest(fetched, content), content):
                    if file.write(part) != len(part):
                        raise OSError(0, "the disk is full")
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        unchecked = self._unchecked_bytes.get(path.parent, self.folder_bytes) + len(content)
        if unchecked > CHECKED_SHARE * self.folder_bytes:
            self._remove_oldest(path.parent)
            unchecked = 0
        self._unchecked_bytes[path.parent] = unchecked

    def _remove_oldest(self, folder: Path) -> None:
        """Remove the least recently used files of a folder that has reached its maximum size."""
        files: list[tuple[float, int, str]] = []
        abandoned = time.time() - ABANDONED_SECONDS
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                    if entry.name.endswith(UNFINISHED):
                        if status.st_mtime < abandoned:
                            os.unlink(entry.path)
                        continue
                except FileNotFoundError:  # another process has removed it
                    continue
                files.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(size for _, size, _ in files) - self.folder_bytes
        if excess <= 0:
            return
        excess += round((1 - REMAINING_SHARE) * self.folder_bytes)
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= size

    def _path(self, wanted: ByteRange) -> Path:
        name = hashlib.blake2b(_identity(wanted), digest_size=20).hexdigest()
        return self.folder / f"{int(name[:2], 16) % NUM_FOLDERS:02d}" / name


def _identity(wanted: ByteRange) -> bytes:
    return "\n".join(map(str, wanted)).encode("utf-8", "surrogateescape")


def _digest(wanted: ByteRange, content: bytes) -> bytes:
    digest = hashlib.blake2b(_identity(wanted), digest_size=DIGEST_BYTES)
    digest.update(content)
    return digest.digest()


@functools.lru_cache(maxsize=1)
def range_cache(settings: StorageSettings) -> RangeCache | None:
    """Return the cache of these settings; None if they have no cache."""
    if settings.cache_dir is None:
        return None
    return RangeCache(Path(settings.cache_dir), round(settings.cache_gigabytes * 1e9))
