"""A cache on disk for results that are computed once per corpus: indexes, and columns of numbers.

The name of a file is a hash of everything that determines its contents, so a stale file is never read. Files are
written under another name and renamed, so a killed process leaves no incomplete file. A lock ensures that only one
process computes.
"""

import hashlib
import logging
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from filelock import Timeout

from asr.base.storage.location import file_name, folder_of, is_url, join, plain, printable_url, without_query
from asr.base.storage.store import download, read_whole, size_and_etag, sizes_and_etags
from asr.base.system.files import NO_ROOM, write_whole
from asr.base.system.lock import locked
from asr.core.data.index import Index, open_index, record_batches, write_index
from asr.core.data.manifest import (
    REQUIRED_KEYS,
    Utterance,
    manifest_lines,
    parse_object,
    parse_utterance,
    read_good_lines,
)
from asr.core.data.utterances import Part, Utterances, with_known_ids
from asr.errors import InputError, StoreError

INDEX_SUFFIX = ".arrow"
LONG_SECONDS = 5.0  # waiting and indexing are logged if they take longer than this
# number of utterances whose values are part of a key, so that a change of the code that computes values changes the key
PROBES = 100

logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return asr's folder in the user's cache: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "asr", "index")


class IndexCache:
    """Indexes of manifests, and arrays computed from them, in one folder.

    If the folder is not writable, results are computed in memory, with a warning.

    Args:
        folder: folder of the files; None: `default_folder`.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)

    def utterances(
        self, path: str | Path, labels: Sequence[str] = (), required: Sequence[str] = REQUIRED_KEYS
    ) -> Utterances:
        """Open a manifest or an index, and return its utterances as columns.

        Args:
            path: path or URL.
            labels: keys of manifest lines that are read as labels; an index has its own labels.
            required: keys that a manifest line must have; an absent `text` is empty.

        Raises:
            InputError: a line is not an utterance, an id occurs twice, or the manifest is empty.
            StoreError: a URL cannot be read.
        """
        path = plain(path)
        if not is_index(path):
            index = self._index(path, labels, required)
        else:
            index = self._fetched(path) if is_url(path) else open_index(Path(path))
        return Utterances([Part(index, folder_of(path))])

    def numbers(self, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array that `compute` returns; later calls with the same key map the stored array into memory.

        Args:
            key: contains everything that determines the array.
            compute: computes the array.
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
        except (ValueError, OSError, EOFError):  # the stored array is damaged
            path.unlink(missing_ok=True)
            return self.numbers(key, compute)
        return stored

    def with_known_ids(self, parts: Sequence[Part]) -> set[int]:
        """Return the result of `asr.core.data.utterances.with_known_ids`, computed once for these parts."""
        sources = [part.index.source for part in parts]
        if len(parts) < 2 or None in sources:
            return with_known_ids(parts)
        key = repr(("parts with known ids", sources))
        rows = self.numbers(key, lambda: np.array(sorted(with_known_ids(parts)), dtype=np.int64))
        return set(rows.tolist())

    def _fetched(self, url: str) -> Index:
        """Open a local copy of the index at a URL; each version is fetched once."""
        size, version = size_and_etag(url)
        key = repr((without_query(url), size, version))
        path = self.folder / f"{_shortened(hashlib.sha256(key.encode()).hexdigest())}{INDEX_SUFFIX}"
        if version is None or not self._made(path, lambda: download(url, path)):
            return fetched_index(url)
        try:
            return open_index(path)
        except InputError:  # the copy is damaged; if the original is damaged too, the next line raises the error
            path.unlink(missing_ok=True)
            return fetched_index(url)

    def _index(self, manifest: str, labels: Sequence[str], required: Sequence[str]) -> Index:
        content = read_whole(manifest) if is_url(manifest) else None  # fetched here, once
        source = _content_digest(manifest, content)
        lacking = "".join(f"-without-{key}" for key in REQUIRED_KEYS if key not in required)
        labelled = f"-{_shortened(hashlib.sha256(repr(tuple(labels)).encode()).hexdigest())}" if labels else ""
        path = self.folder / f"{source}{lacking}{labelled}{INDEX_SUFFIX}"

        def rows() -> Iterator[Utterance]:
            return _rows(manifest, content, labels, required)

        def write() -> None:
            write_whole(path, lambda file: write_index(file, rows(), source, labels=labels))

        if not self._made(path, write):
            return Index(list(record_batches(rows(), labels)), source)
        try:
            return open_index(path)
        except InputError as error:
            logger.warning("%s The index is written again.", error)
            path.unlink(missing_ok=True)
            return self._index(manifest, labels, required)

    def _made(self, path: Path, write: Callable[[], None], compute: Callable[[], None] = lambda: None) -> bool:
        """Make a file while holding its lock, if the file does not exist; return whether it exists now.

        Args:
            path: path of the file.
            write: writes the file; an OSError is logged as a fault of the folder.
            compute: called before `write`; its errors are raised.
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
        """Hold the lock of a file until `stack` closes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock")
        try:
            stack.enter_context(locked(lock, LONG_SECONDS))
        except Timeout:
            logger.info("waiting for another process to index the corpus")
            stack.enter_context(locked(lock))

    def _does_write(self, action: Callable[[], None]) -> bool:
        """Run an action that writes to the folder; return whether it succeeded. An OSError is logged as a warning."""
        try:
            action()
        except OSError as error:
            problem = "is full" if error.errno in NO_ROOM else f"is not writable ({error.strerror})"
            hint = "set data.index_dir to a writable folder to index once for all processes and runs"
            logger.warning("%s %s: the corpus is indexed in memory; %s", self.folder, problem, hint)
            return False
        return True


def _rows(manifest: str, content: bytes | None, labels: Sequence[str], required: Sequence[str]) -> Iterator[Utterance]:
    """Yield the utterances of a manifest, with audio paths as in the manifest; log the progress."""
    hashes, announced = array("q"), time.monotonic()
    for number, (where, line) in enumerate(manifest_lines(manifest, content), start=1):
        utterance = parse_utterance(parse_object(line, where), where, None, required, labels)
        hashes.append(hash(utterance.id))
        if number % 10_000 == 0 and time.monotonic() - announced > LONG_SECONDS:
            announced = time.monotonic()
            logger.info("indexing %s: %s utterances done", printable_url(manifest), f"{number:,}")
        yield utterance
    if len(np.unique(np.frombuffer(hashes, dtype=np.int64))) < len(hashes):
        _, problems = read_good_lines(manifest, required=required)  # empty if only the hashes are equal, not the ids
        for problem in problems:  # a problem names both lines that have the same id
            raise problem


def _content_digest(manifest: str, content: bytes | None) -> str:
    """Hash a manifest; `content` is None for a local file."""
    if content is not None:
        return _shortened(hashlib.sha256(content).hexdigest())
    try:
        with open(manifest, "rb") as file:
            return _shortened(hashlib.file_digest(file, "sha256").hexdigest())
    except OSError:
        for _ in manifest_lines(manifest):  # raises an error with a message for the user
            break
        raise


def listed_utterances(
    path: str | Path, labels: Sequence[str] = (), required: Sequence[str] = REQUIRED_KEYS
) -> tuple[list[Utterance], list[InputError]]:
    """Return the utterances of a manifest or an index, and the errors of a manifest's invalid lines.

    Args:
        path: path or URL.
        labels: keys of manifest lines that are read as labels; an index has its own labels.
        required: keys that a manifest line must have; an absent `text` is empty.

    Raises:
        InputError: the file does not exist or is empty.
        StoreError: a URL cannot be read.
    """
    path = plain(path)
    if is_index(path):
        return list(Utterances([Part(fetched_index(path), folder_of(path))])), []
    return read_good_lines(path, required=required, labels=labels)


def fetched_index(path: str) -> Index:
    """Open an index; an index at a URL is first copied to a temporary, unlinked file.

    Raises:
        InputError: the file is not an intact index.
        StoreError: the URL cannot be read.
    """
    if not is_url(path):
        return open_index(Path(path))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file_name(path))
        download(path, copy)
        return open_index(copy)


def check_shards(index: Index, folder: str) -> None:
    """Check that the shards of an index exist with the sizes in the index, and record their versions.

    Later, utterances of the index are read from these versions only.

    Raises:
        StoreError: a shard is absent or has another size; the message names the first such shard.
    """
    paths = [join(folder, shard) for shard in index.shards]
    for path, (shard, size), info in zip(paths, index.shards.items(), sizes_and_etags(paths), strict=True):
        if info.size != size:
            must = f"{printable_url(path)}: a shard must have the size in its index, {size:,} bytes"
            raise StoreError(f"{must}; got {info.size:,}. The index belongs to other shards, or this shard is damaged.")
        index.versions[shard] = info.etag


def is_index(path: str) -> bool:
    """Return whether a path or URL names an index instead of a manifest."""
    return without_query(path).endswith(INDEX_SUFFIX)


def spread(number: int) -> list[int]:
    """Return up to `PROBES` evenly spaced positions among `number` utterances."""
    return sorted({round(index * (number - 1) / (PROBES - 1)) for index in range(PROBES)}) if number else []


def _shortened(digest: str) -> str:
    return digest[:32]
