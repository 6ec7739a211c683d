"""Index tar files of other toolkits (WebDataset, NeMo's tarred audio) without copying their audio."""

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from asr.base.audio.find import HEAD_BYTES, begins_as_audio, has_audio_name
from asr.base.audio.load import audio_info
from asr.base.storage.location import file_name, folder_of, is_url, printable_url
from asr.base.storage.store import read_range, size_and_etag, sizes_and_etags, write_whole
from asr.core.data.index import write_index
from asr.core.data.manifest import Extent, Utterance, named_lines, parse_object, parse_utterance
from asr.errors import AudioError, InputError, reason_of

READ_BYTES = 1 << 16  # size of one read; large enough for a header and the small members after it
MAX_TEXT_BYTES = 1 << 20  # maximum size of a member that is a text or a manifest line

OnShard = Callable[[], object]


class RangeFile(io.RawIOBase):
    """A path or URL as an open file, for libraries that need one; all bytes are of one version of the file.

    Args:
        path: path or URL of the file.

    Raises:
        StoreError: the file cannot be read, or has changed.
    """

    def __init__(self, path: str) -> None:
        self._path, self._position = path, 0
        self.size, self._version = size_and_etag(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        number = max(0, min(len(buffer), self.size - self._position))
        if number:
            buffer[:number] = read_range(self._path, self._position, number, etag=self._version)
            self._position += number
        return number


class Member(NamedTuple):
    """A regular file in a tar file."""

    name: str
    extent: Extent


def members(path: str) -> Iterator[Member]:
    """Yield the regular files of a tar file; only headers are read.

    Raises:
        InputError: the file is not a complete, uncompressed tar file.
        StoreError: the file cannot be read.
    """
    file, name = RangeFile(path), printable_url(path)
    try:
        with tarfile.open(fileobj=io.BufferedReader(file, READ_BYTES), mode="r:") as archive:
            for member in archive:
                if member.offset_data + member.size > file.size:
                    raise InputError(f"{name}: must be a complete tar file; {member.name!r} extends beyond its end.")
                if member.isreg() and not member.issparse():
                    yield Member(member.name, Extent(member.offset_data, member.size))
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: must be an uncompressed tar file; {reason_of(error)}.") from None


def index_webdataset(shards: Sequence[str], on_shard: OnShard, labels: Sequence[str] = ()) -> Iterator[Utterance]:
    """Yield the utterances of WebDataset shards; each is an audio file, and a .json or .txt file with the same key.

    The .json may have the keys of a manifest line. If it has no `text`, the text is read from the .txt; if it has no
    `duration`, the audio file is read; if it has no `id`, the sample's key is the id.

    Args:
        shards: paths or URLs.
        on_shard: called after each shard.
        labels: keys of the .json that are read as labels.

    Raises:
        InputError: a shard is not a tar file, or a sample is not an utterance.
        StoreError: a shard cannot be read.
    """
    for shard in shards:
        for key, sample in _samples(members(shard)):
            yield _utterance(shard, key, sample, labels)
        on_shard()


def _samples(files: Iterable[Member]) -> Iterator[tuple[str, dict[str, Extent]]]:
    """Group neighbouring members by WebDataset's key: the folder, and the file name up to its first dot."""
    key, sample = "", dict[str, Extent]()
    for name, extent in files:
        folder, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        own = f"{folder}/{stem}" if folder else stem
        if sample and own != key:
            yield key, sample
            sample = {}
        key = own
        sample[f".{suffix.lower()}"] = extent
    if sample:
        yield key, sample


def _utterance(shard: str, key: str, sample: Mapping[str, Extent], labels: Sequence[str]) -> Utterance:
    where = f"{printable_url(shard)}: {key}"
    audio = [suffix for suffix in sample if has_audio_name(suffix)] or _like_audio(shard, sample)
    if len(audio) != 1:
        raise InputError(f"{where}: a sample must have exactly one audio file; got {', '.join(sorted(sample))}.")
    entry: dict[str, Any] = {}
    if ".json" in sample:
        entry = parse_object(_text(shard, sample[".json"], where), where)
    if ".txt" in sample and "text" not in entry:
        entry = entry | {"text": _text(shard, sample[".txt"], where).rstrip("\r\n")}
    extent = sample[audio[0]]
    if "duration" not in entry:
        entry = entry | {"duration": _seconds(shard, extent, where)}
    entry = entry | {"audio_filepath": shard, "id": entry.get("id", key)}
    return replace(parse_utterance(entry, where, None, labels=labels), extent=extent)


def _like_audio(shard: str, sample: Mapping[str, Extent]) -> list[str]:
    """Return the suffixes of those members whose content begins as a recording."""
    heads = {
        suffix: read_range(shard, extent.start, min(extent.num_bytes, HEAD_BYTES))
        for suffix, extent in sample.items()
        if suffix not in (".json", ".txt") and extent.num_bytes
    }
    return [suffix for suffix, head in heads.items() if begins_as_audio(head)]


def _text(shard: str, extent: Extent, where: str) -> str:
    if extent.num_bytes > MAX_TEXT_BYTES:
        raise InputError(f"{where}: a text must have at most {MAX_TEXT_BYTES:,} bytes; got {extent.num_bytes:,}.")
    return read_range(shard, extent.start, extent.num_bytes).decode("utf-8", "surrogateescape")


def _seconds(shard: str, extent: Extent, where: str) -> float:
    try:
        sample_rate, _, num_samples = audio_info(where, read_range(shard, extent.start, extent.num_bytes))
    except AudioError as error:
        raise InputError(f"{error} The .json of a sample without readable audio must have a duration.") from None
    return num_samples / sample_rate


def index_nemo(
    shards: Sequence[str], manifest: str, on_shard: OnShard, labels: Sequence[str] = ()
) -> Iterator[Utterance]:
    """Yield the utterances of NeMo's tarred audio, in the order of their manifest.

    Args:
        shards: tar files in the order of their `shard_id`, from 0.
        manifest: path or URL of the manifest; each line has a `shard_id`, and the member's name as `audio_filepath`.
        on_shard: called after each shard.
        labels: keys of the manifest's lines that are read as labels.

    Raises:
        InputError: a line is not an utterance, is only a segment of a member, or names a member that its shard does
            not have.
        StoreError: a shard cannot be read.
    """
    extents = []
    for shard in shards:
        extents.append({PurePosixPath(name).name: extent for name, extent in members(shard)})
        on_shard()
    for where, line in named_lines(manifest, "a manifest of tarred audio"):
        entry = parse_object(line, where)
        number = entry.get("shard_id")
        if type(number) is not int or not 0 <= number < len(shards):
            must = f"{where}: shard_id must be a number from 0 to {len(shards) - 1}, the number of a tar file"
            raise InputError(f"{must}; got {json.dumps(number)}. Give all tar files, in order.")
        utterance = parse_utterance(entry, where, None, labels=labels)
        if utterance.offset:
            must = f"{where}: offset must be absent or 0, because each file of a shard is read whole"
            raise InputError(f"{must}; got {utterance.offset:g}. Write the shards with NeMo's --slice_with_offset.")
        extent = extents[number].get(PurePosixPath(utterance.audio_filepath).name)
        if extent is None:
            raise InputError(
                f"{where}: {file_name(shards[number])} must contain {utterance.audio_filepath!r}; it does not."
            )
        yield replace(utterance, audio_filepath=shards[number], extent=extent)


def write_foreign_index(
    output: str, shards: Sequence[str], utterances: Iterable[Utterance], labels: Sequence[str] = ()
) -> int:
    """Write an index of existing shards; return the number of utterances.

    Args:
        output: path or URL of the index, in the shards' folder or a parent folder.
        shards: paths or URLs.
        utterances: the result of `index_webdataset` or `index_nemo`.
        labels: names of the utterances' labels.

    Raises:
        InputError: a shard is not below the folder of the index, or an id occurs twice.
        StoreError: the index cannot be written.
    """
    folder = folder_of(output)
    names = {shard: _below(folder, shard) for shard in shards}
    infos = sizes_and_etags(shards)
    sizes = {names[shard]: info.size for shard, info in zip(shards, infos, strict=True)}
    source = sha256(repr((list(sizes.items()), [info.etag for info in infos])).encode()).hexdigest()[:32]
    seen: set[int] = set()

    def rows() -> Iterator[Utterance]:
        for utterance in utterances:
            key = hash(utterance.id)
            if key in seen:
                must = f"{printable_url(utterance.audio_filepath)}: ids must be unique"
                cure = "Remove the key id of each .json if it does not name utterances; otherwise leave out a shard"
                raise InputError(f"{must}; {utterance.id!r} is in more than one sample. {cure}.")
            seen.add(key)
            yield replace(utterance, audio_filepath=names[utterance.audio_filepath])

    with tempfile.NamedTemporaryFile() as file:
        write_index(cast(BinaryIO, file), rows(), source, sizes, labels)
        file.flush()
        if not seen:
            raise InputError(f"{printable_url(shards[0])}: shards must contain an utterance; they contain none.")
        write_whole(output, Path(file.name))
    return len(seen)


def _below(folder: str, shard: str) -> str:
    """Return the path of a shard relative to `folder`, which must contain the shard, directly or in a subfolder."""
    own = shard if is_url(shard) else os.path.abspath(shard)
    base = f"{folder if is_url(folder) else os.path.abspath(folder)}/"
    if not own.startswith(base):
        must = "--output must be in the folder of the shards or in a parent folder"
        raise InputError(f"{must}; {printable_url(shard)} is not below {printable_url(folder) or '.'}.")
    return own[len(base) :]
