"""The input of a bulk job: a manifest, an index, or audio files in a folder or below a URL.

For audio files, only names and sizes are read at the start. Durations are estimated from the sizes, which suffices to
plan parts; a worker measures them when it reads the files.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asr.base.audio.find import audio_named, find_audio
from asr.base.audio.load import audio_info
from asr.base.storage.client import ObjectInfo
from asr.base.storage.location import file_name, is_url, join, plain, printable_url, without_query
from asr.base.storage.store import list_prefix
from asr.core.data.index import INDEX
from asr.core.data.index_cache import INDEX_SUFFIX, IndexCache, check_shards
from asr.core.data.manifest import REPEATED_IDS, Utterance
from asr.core.data.utterances import Utterances
from asr.errors import AudioError, InputError, shown

MANIFEST_SUFFIXES = (".jsonl", ".json", INDEX_SUFFIX)
NEEDED_KEYS = ("audio_filepath", "duration")  # required keys of a manifest line
PROBES = 8  # number of files of each suffix that are opened to estimate bytes per second
PCM_BYTES_PER_SECOND = 32_000.0  # estimate if no file can be opened: 16 kHz, 16 bits
MIN_SECONDS = 0.01  # estimated duration of the smallest file


@dataclass(frozen=True)
class Source:
    """The utterances of a job.

    Args:
        path: path or URL of the input, as given by the user.
        utterances: utterances in the order of the manifest, or sorted by file name; their texts are not used.
        versions: hash of the sizes and versions of the audio files, or of the shards; empty for a manifest, because
            its audio files are not looked at before they are read.
        bytes_per_second: bytes per second of audio, by file suffix, from which durations are estimated; empty: the
            manifest has the durations.
    """

    path: str
    utterances: Utterances
    versions: bytes
    bytes_per_second: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Return whether durations are measured instead of estimated."""
        return not self.bytes_per_second


def open_source(path: str, bytes_per_second: Mapping[str, float] | None = None, labels: Sequence[str] = ()) -> Source:
    """Open the input of a job.

    Args:
        path: path or URL of a manifest, an index, a folder of shards with an index, an audio file, or a folder of audio
            files.
        bytes_per_second: estimates from an earlier start of the job; None: estimate them from some files.
        labels: keys of manifest lines that are read as labels.

    Raises:
        InputError: the input does not exist, has no audio, or has two utterances with equal ids.
        StoreError: a store cannot be read, or shards do not match the index.
    """
    path = plain(path)
    if file_name(path).endswith(".tar"):
        must = "INPUT must be the index of shards; got a shard"
        raise InputError(f"{must}, {printable_url(path)}. Make an index: python -m asr.shards --index-only --help.")
    is_folder = os.path.isdir(path)
    if is_folder and os.path.isfile(os.path.join(path, INDEX)):
        path, is_folder = os.path.join(path, INDEX), False
    if without_query(path).endswith(MANIFEST_SUFFIXES) and not is_folder:
        source = _listed(path, labels)
    else:
        source = _of_files(path, bytes_per_second, labels)
    _check_ids(source.utterances, path)
    return source


def _listed(path: str, labels: Sequence[str]) -> Source:
    utterances = IndexCache().utterances(path, labels, NEEDED_KEYS)
    for part in utterances.parts:
        check_shards(part.index, part.folder)
    versions = [sorted(part.index.versions.items()) for part in utterances.parts]
    return Source(path, utterances, _digest(versions) if any(versions) else b"")


def _digest(versions: object) -> bytes:
    return hashlib.sha256(repr(versions).encode("utf-8", "surrogateescape")).digest()


def _of_files(path: str, bytes_per_second: Mapping[str, float] | None, labels: Sequence[str]) -> Source:
    infos = _infos(path)
    if is_url(path) and join(path, INDEX) in infos:
        return _listed(join(path, INDEX), labels)
    if is_url(path) and list(infos) != [path]:
        infos = {file: infos[file] for file in audio_named(infos, path)}
    if bytes_per_second is None:
        bytes_per_second = _estimated(list(infos))
    default = max(bytes_per_second.values(), default=PCM_BYTES_PER_SECOND)
    utterances = [
        Utterance(
            file, max(info.size / bytes_per_second.get(_suffix(file), default), MIN_SECONDS), "", _inside(file, path)
        )
        for file, info in infos.items()
    ]
    return Source(path, Utterances.of(utterances), _digest(list(infos.items())), bytes_per_second)


def _infos(path: str) -> dict[str, ObjectInfo]:
    """Map the files below a path or URL, sorted, to their sizes and versions."""
    if is_url(path):
        return dict(list_prefix(path))
    return {str(file): _info(file) for file in find_audio(path)}


def _info(file: Path) -> ObjectInfo:
    try:
        status = file.stat()
    except OSError:  # a broken link, which is reported when it is read
        return ObjectInfo(0, None)
    return ObjectInfo(status.st_size, str(status.st_mtime_ns))


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def _inside(file: str, path: str) -> str:
    """Return an audio file's id: its path relative to the input, or its file name if the file is the input."""
    return file_name(file) if file == path else file.removeprefix(path).lstrip("/")


def _estimated(files: Sequence[str]) -> dict[str, float]:
    """Open a few files of each suffix, evenly spread, to estimate bytes per second of audio."""
    by_suffix: dict[str, list[str]] = {}
    for file in files:
        by_suffix.setdefault(_suffix(file), []).append(file)
    return {suffix: _mean_rate(similar) for suffix, similar in sorted(by_suffix.items())}


def _mean_rate(files: Sequence[str]) -> float:
    num_bytes = seconds = 0.0
    for file, content in _probed(files):
        try:
            info = audio_info(file, content)
        except AudioError:  # the file becomes a failure when its part is transcribed
            continue
        num_bytes += os.stat(file).st_size if content is None else len(content)
        seconds += info.num_samples / info.sample_rate
    return num_bytes / seconds if seconds else PCM_BYTES_PER_SECOND


def _probed(files: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    from asr.base.storage.store import read_whole

    rows = np.unique(np.linspace(0, len(files) - 1, PROBES).round().astype(int))
    for row in rows:
        yield files[row], read_whole(files[row]) if is_url(files[row]) else None


def _check_ids(utterances: Utterances, path: str) -> None:
    """Check that ids are unique, because they identify texts and failures."""
    hashes = np.fromiter(map(hash, utterances.ids), np.int64, len(utterances))
    if len(np.unique(hashes)) == len(hashes):
        return
    seen: set[str] = set()
    for name in utterances.ids:
        if name in seen:
            raise InputError(f"{printable_url(path)}: ids must be unique; {shown(name)} occurs twice. {REPEATED_IDS}.")
        seen.add(name)
