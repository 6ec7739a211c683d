"""What is computed once of a corpus and kept on disk for all processes and later runs: indexes, and columns of numbers.

Files are named by a hash of all that they are a function of, so a stale one is never read. They are written under
another name and renamed, so a killed process leaves no half of one. A lock lets one process of several compute.
"""

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from asr.data.index import Index, open_index, record_batches, write_index
from asr.data.manifest import (
    REQUIRED_KEYS,
    Utterance,
    manifest_lines,
    parse_object,
    parse_utterance,
    read_good_lines,
)
from asr.data.utterances import Part, Utterances, with_known_ids
from asr.errors import InputError, StoreError
from asr.storage.location import file_name, folder_of, is_url, join, plain, printable_url, without_query
from asr.storage.store import download, read_whole, size_and_etag, sizes_and_etags
from asr.system.files import NO_ROOM, write_whole

INDEX_SUFFIX = ".arrow"
POLL_SECONDS = 0.1
LONG_SECONDS = 5.0  # of waiting or indexing, which then is logged
PROBES = 100  # utterances of which a key holds something computed: code that has changed gives another key

logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return asr's folder in the user's cache: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "asr", "index")


class IndexCache:
    """Indexes of manifests, and arrays computed from them, in one folder.

    A folder that cannot be written to costs time, not the run: what it lacks is computed in memory, with a warning.

    Args:
        folder: where they are kept; None: `default_folder`.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)

    def utterances(self, path: str | Path, required: Sequence[str] = REQUIRED_KEYS) -> Utterances:
        """Open a manifest, or an index, as columns.

        Args:
            path: or URL.
            required: keys that a line of a manifest must have; without `text`, the text is empty.

        Raises:
            InputError: naming file and line, for what is not an utterance, a repeated id, or an empty manifest.
            StoreError: what a URL names cannot be read.
        """
        path = plain(path)
        if not without_query(path).endswith(INDEX_SUFFIX):
            index = self._index(path, required)
        else:
            index = self._fetched(path) if is_url(path) else open_index(Path(path))
        return Utterances([Part(index, folder_of(path))])

    def numbers(self, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what `compute` returns, computed once: later from the disk, mapped into memory.

        Args:
            key: names all that the array is a function of.
            compute: the array.
        """
        path = self.folder / f"{_shortened(hashlib.sha256(key.encode()).hexdigest())}.npy"
        computed = None

        def compute_once() -> None:
            nonlocal computed
            computed = compute()

        def write() -> None:
            assert computed is not None
            write_whole(path, partial(np.save, arr=computed))

        if not self._made(path, write, compute_once):
            return compute() if computed is None else computed
        try:
            stored: np.ndarray = np.load(path, mmap_mode="c")
        except (ValueError, OSError, EOFError):  # damaged
            path.unlink(missing_ok=True)
            return self.numbers(key, compute)
        return stored

    def with_known_ids(self, parts: Sequence[Part]) -> set[int]:
        """Return what `with_known_ids` of asr.data.utterances does, computed once for these parts."""
        sources = [part.index.source for part in parts]
        if len(parts) < 2 or None in sources:
            return with_known_ids(parts)
        key = repr(("parts with known ids", sources))
        places = self.numbers(key, lambda: np.array(sorted(with_known_ids(parts)), dtype=np.int64))
        return set(places.tolist())

    def _fetched(self, url: str) -> Index:
        """Open a copy of the index at a URL, which is fetched once for each version of it."""
        size, version = size_and_etag(url)
        key = repr((without_query(url), size, version))
        path = self.folder / f"{_shortened(hashlib.sha256(key.encode()).hexdigest())}{INDEX_SUFFIX}"
        if version is None or not self._made(path, lambda: download(url, path)):
            return fetched_index(url)
        try:
            return open_index(path)
        except InputError:  # the copy is damaged; an index that is damaged itself fails again below
            path.unlink(missing_ok=True)
            return fetched_index(url)

    def _index(self, manifest: str, required: Sequence[str]) -> Index:
        content = read_whole(manifest) if is_url(manifest) else None  # fetched once
        source = _content_digest(manifest, content)
        lacking = "".join(f"-without-{key}" for key in REQUIRED_KEYS if key not in required)
        path = self.folder / f"{source}{lacking}{INDEX_SUFFIX}"

        def write() -> None:
            write_whole(path, lambda file: write_index(file, _rows(manifest, content, required), source))

        if not self._made(path, write):
            return Index(list(record_batches(_rows(manifest, content, required))), source)
        try:
            return open_index(path)
        except InputError as error:
            logger.warning("%s It is made anew.", error)
            path.unlink(missing_ok=True)
            return self._index(manifest, required)

    def _made(self, path: Path, write: Callable[[], None], compute: Callable[[], None] = lambda: None) -> bool:
        """Make a file under a lock if it is not there; tell whether it is there now.

        Args:
            path: of the file.
            write: writes it; its OSErrors are faults of the folder, and a warning.
            compute: called before; its errors are raised.
        """
        if path.exists():
            return True
        with ExitStack() as stack:
            if not self._does_write(lambda: self._lock(path, stack)):
                return False
            if path.exists():
                return True
            compute()
            return self._does_write(write)

    def _lock(self, path: Path, stack: ExitStack) -> None:
        """Hold the lock of a file until `stack` ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_locked(path.with_suffix(".lock")))

    def _does_write(self, action: Callable[[], None]) -> bool:
        """Do something in the folder; where that fails, warn and return False."""
        try:
            action()
        except OSError as error:
            what = "is full" if error.errno in NO_ROOM else f"cannot be written to ({error.strerror})"
            hint = "give data.index_dir a folder that can be, to index once for all processes and runs"
            logger.warning("%s %s: the corpus is indexed in memory; %s", self.folder, what, hint)
            return False
        return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that is gone with this process, however it ends."""
    with path.open("w") as file:
        begun, announced = time.monotonic(), False
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if not announced and time.monotonic() - begun > LONG_SECONDS:
                    logger.info("waiting for another process, which is indexing the corpus")
                    announced = True
                time.sleep(POLL_SECONDS)
            except OSError:  # a file system without locks: several processes compute, each the same
                break
        yield


def _rows(manifest: str, content: bytes | None, required: Sequence[str]) -> Iterator[Utterance]:
    """Yield the utterances of a manifest, audio paths as written; progress is logged.

    Args:
        manifest: path or URL.
        content: of it; None: it is read.
        required: keys that each line must have.
    """
    hashes, announced = array("q"), time.monotonic()
    for number, (where, line) in enumerate(manifest_lines(manifest, content), start=1):
        utterance = parse_utterance(parse_object(line, where), where, None, required)
        hashes.append(hash(utterance.id))
        if number % 10_000 == 0 and time.monotonic() - announced > LONG_SECONDS:
            announced = time.monotonic()
            logger.info("indexing %s: %s utterances so far", printable_url(manifest), f"{number:,}")
        yield utterance
    if len(np.unique(np.frombuffer(hashes, dtype=np.int64))) < len(hashes):
        _, problems = read_good_lines(manifest, required=required)  # none, if only the hashes are equal
        for problem in problems:  # names both lines
            raise problem


def _content_digest(manifest: str, content: bytes | None) -> str:
    """Hash a manifest; `content` is None for a file of this machine."""
    if content is not None:
        return _shortened(hashlib.sha256(content).hexdigest())
    try:
        with open(manifest, "rb") as file:
            return _shortened(hashlib.file_digest(file, "sha256").hexdigest())
    except OSError:
        for _ in manifest_lines(manifest):  # raises the error that says what is wrong
            break
        raise


def listed_utterances(
    path: str | Path, required: Sequence[str] = REQUIRED_KEYS
) -> tuple[list[Utterance], list[InputError]]:
    """Return the utterances of a manifest or an index, and what is wrong with the other lines of a manifest.

    Args:
        path: or URL.
        required: keys that a line of a manifest must have; without `text`, the text is empty.

    Raises:
        InputError: there is no such file, or no line in it.
        StoreError: what a URL names cannot be read.
    """
    path = plain(path)
    if without_query(path).endswith(INDEX_SUFFIX):
        return list(Utterances([Part(fetched_index(path), folder_of(path))])), []
    return read_good_lines(path, required=required)


def fetched_index(path: str) -> Index:
    """Open an index; that of a URL is copied to this machine first, into a file that has no name any more.

    Raises:
        InputError: the file is not a whole index.
        StoreError: it cannot be read.
    """
    if not is_url(path):
        return open_index(Path(path))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file_name(path))
        download(path, copy)
        return open_index(copy)


def check_shards(index: Index, folder: str) -> None:
    """Check that the shards of an index are there, with the sizes that it gives, and note their versions.

    From then on an utterance of the index is read from those versions only.

    Raises:
        StoreError: naming the first that is not.
    """
    paths = [join(folder, shard) for shard in index.shards]
    for path, (shard, size), info in zip(paths, index.shards.items(), sizes_and_etags(paths), strict=True):
        if info.size != size:
            must = f"{printable_url(path)}: a shard must have the size that its index gives, {size:,} bytes"
            raise StoreError(f"{must}; it has {info.size:,}. The index belongs to other shards, or one is damaged.")
        index.versions[shard] = info.etag


def spread(number: int) -> list[int]:
    """Return the positions of up to `PROBES` utterances of `number`, evenly spread."""
    return sorted({round(place * (number - 1) / (PROBES - 1)) for place in range(PROBES)}) if number else []


def _shortened(digest: str) -> str:
    return digest[:32]
