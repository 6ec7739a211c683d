"""An index: the columns of a manifest in an Arrow file, memory-mapped by all processes of a machine.

A row is an utterance; rows are in the manifest's order. Ten million rows need little memory: a process loads only the
pages that it accesses, and makes `Utterance` objects only for the current batch.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from asr.base.storage.location import file_name, folder_of
from asr.core.data.manifest import MAX_SECONDS, Extent, Utterance, known
from asr.errors import InputError, reason_of

FORMAT = b"asr.index"  # key of the file's metadata
FORMAT_NUMBER = b"2"
READABLE = (b"1", FORMAT_NUMBER)  # format 1 has no labels
LABEL = "label."  # prefix of the names of label columns
SHARDS = b"asr.index.shards"  # key of the file's metadata; the value is the JSON of `Index.shards`
SOURCE = b"asr.index.source"  # key of the file's metadata; the value is the hash of the manifest or shards
INDEX = "index.arrow"  # name of the index in a folder of shards
BATCH_ROWS = 16_384  # rows of every record batch except the last, so that a division finds a row's batch

# Text columns are bytes, because names of files may contain bytes that are not UTF-8; Arrow's strings must be UTF-8.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(), nullable=False),
        pa.field("audio_filepath", pa.binary(), nullable=False),  # as in the manifest: relative to its folder
        pa.field("duration", pa.float64(), nullable=False),  # seconds
        pa.field("offset", pa.float64()),  # seconds; null: the utterance is the whole file
        pa.field("speaker", pa.binary()),
        pa.field("text", pa.binary(), nullable=False),  # as in the manifest
        pa.field("start", pa.int64()),  # first byte of the audio in a shard; null: audio_filepath is an audio file
        pa.field("num_bytes", pa.int64()),
    ],
    metadata={FORMAT: FORMAT_NUMBER},
)


def manifest_name(path: str) -> str:
    """Return the name of a manifest without folder and suffix; for an index.arrow, the name of its folder."""
    return file_name(folder_of(path)) if file_name(path) == INDEX else PurePosixPath(file_name(path)).stem


def encoded(text: str) -> bytes:
    """Encode a text; surrogate escapes become the original bytes that were not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def decoded(content: bytes) -> str:
    """Decode bytes; the inverse of `encoded`."""
    return content.decode("utf-8", "surrogateescape")


class Index:
    """The rows of one index.

    Args:
        batches: record batches of `SCHEMA`, each with `BATCH_ROWS` rows except the last.
        source: hash of the manifest or shards; None: unknown.
        shards: size of each shard in bytes, by its path relative to the index.
    """

    def __init__(
        self, batches: list[pa.RecordBatch], source: str | None = None, shards: Mapping[str, int] | None = None
    ) -> None:
        self.batches = batches
        self.source = source
        self.shards = dict(shards or {})
        self.versions: dict[str, str | None] = {}  # versions of the checked shards; later reads accept no others
        self.num_rows = sum(batch.num_rows for batch in batches)
        names = batches[0].schema.names[len(SCHEMA) :] if batches else []
        self.labels = tuple(name.removeprefix(LABEL) for name in names)

    def utterance(self, row: int) -> Utterance:
        """Make the utterance of a row, with its audio path as in the manifest."""
        number, row_in_batch = divmod(row, BATCH_ROWS)
        columns = (column[row_in_batch].as_py() for column in self.batches[number].columns)
        name, path, duration, offset, speaker, text, start, num_bytes, *values = columns
        path = decoded(path)
        extent = None if start is None else Extent(start, num_bytes, self.versions.get(path))
        speaker = None if speaker is None else known(decoded(speaker))
        return Utterance(
            path,
            duration,
            decoded(text),
            decoded(name),
            offset=offset,
            speaker=speaker,
            labels={
                label: decoded(value) for label, value in zip(self.labels, values, strict=True) if value is not None
            },
            extent=extent,
        )

    @property
    def num_bytes(self) -> int:
        """Size of the columns in bytes."""
        return sum(batch.nbytes for batch in self.batches)

    def column(self, name: str) -> np.ndarray:
        """Return a column of numbers, (num_rows,)."""
        parts = [_numbers(batch, name) for batch in self.batches]
        return np.concatenate(parts) if parts else np.zeros(0)


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return a column of numbers, with NaN for null, (num_rows,)."""
    column = batch.column(name)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    numbers: np.ndarray = column.to_numpy(zero_copy_only=False)
    return numbers


def schema_with(labels: Sequence[str]) -> pa.Schema:
    """Return the schema of an index with these labels."""
    schema = SCHEMA
    for label in labels:
        schema = schema.append(pa.field(f"{LABEL}{label}", pa.binary()))
    return schema


def record_batches(utterances: Iterable[Utterance], labels: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yield record batches of utterances with columns for these labels; audio paths are stored unchanged."""
    utterances, schema = iter(utterances), schema_with(labels)
    while rows := list(islice(utterances, BATCH_ROWS)):
        arrays = [
            _texts([row.id for row in rows]),
            _texts([row.audio_filepath for row in rows]),
            pa.array([row.duration for row in rows], pa.float64()),
            pa.array([row.offset for row in rows], pa.float64()),
            _texts([row.speaker for row in rows]),
            _texts([row.text for row in rows]),
            pa.array([row.extent and row.extent.start for row in rows], pa.int64()),
            pa.array([row.extent and row.extent.num_bytes for row in rows], pa.int64()),
            *(_texts([row.labels.get(label) for row in rows]) for label in labels),
        ]
        yield pa.record_batch(arrays, schema=schema)


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Make a column of bytes from texts."""
    try:
        return pa.array(values, pa.string()).view(pa.binary())
    except UnicodeEncodeError:  # a text has bytes that are not UTF-8
        return pa.array([None if value is None else encoded(value) for value in values], pa.binary())


def write_index(
    file: BinaryIO,
    utterances: Iterable[Utterance],
    source: str,
    shards: Mapping[str, int] | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Write the index of utterances; only one record batch is in memory at a time.

    Args:
        file: output file.
        utterances: utterances with audio paths relative to the folder of the manifest or of the index.
        source: hash of the manifest or shards.
        shards: size of each shard in bytes, by its path relative to the index.
        labels: names of the labels to write.
    """
    schema = schema_with(labels)
    metadata = {**schema.metadata, SOURCE: source.encode(), SHARDS: json.dumps(dict(shards or {})).encode()}
    with pa.ipc.new_file(file, schema.with_metadata(metadata)) as writer:
        for batch in record_batches(utterances, labels):
            writer.write_batch(batch)


def open_index(path: Path) -> Index:
    """Map an index into memory."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        metadata = reader.schema.metadata or {}
        labels = [name.removeprefix(LABEL) for name in reader.schema.names[len(SCHEMA) :]]
        if metadata.get(FORMAT) not in READABLE or not reader.schema.equals(schema_with(labels)):
            raise InputError(f"{path}: must be an index of format {FORMAT_NUMBER.decode()}; it is another Arrow file.")
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # offsets in an untrusted file may point outside of the file
            if any(batch.column(field.name).null_count for field in SCHEMA if not field.nullable):
                raise InputError(f"{path}: must be an index without nulls in required columns; it is damaged.")
        shards = json.loads(metadata.get(SHARDS, b"{}"))
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else reason_of(error)
        raise InputError(f"{path}: must be an index; {reason}.") from None
    if not isinstance(shards, dict) or not all(type(size) is int and size >= 0 for size in shards.values()):
        raise InputError(f"{path}: must be an index whose shards have sizes; it is damaged.")
    if any(name.startswith("/") or ".." in PurePosixPath(name).parts for name in shards):
        raise InputError(f"{path}: shards must be files in the folder of the index; the index is damaged.")
    sizes = [batch.num_rows for batch in batches]
    if any(size != BATCH_ROWS for size in sizes[:-1]) or (sizes and not 0 < sizes[-1] <= BATCH_ROWS):
        raise InputError(f"{path}: must be an index whose record batches have {BATCH_ROWS} rows; it is damaged.")
    _check_values(batches, path)
    return Index(batches, metadata.get(SOURCE, b"").decode("ascii", "replace") or None, shards)


def _check_values(batches: Sequence[pa.RecordBatch], path: Path) -> None:
    """Check numbers by the rules for a manifest line, because an index may be untrusted."""
    for number, batch in enumerate(batches):
        durations, offsets = _numbers(batch, "duration"), _numbers(batch, "offset")
        starts, num_bytes = _numbers(batch, "start"), _numbers(batch, "num_bytes")
        wrong = ~((durations > 0) & (durations < MAX_SECONDS)) | ((offsets < 0) | (offsets >= MAX_SECONDS))
        wrong |= (np.isnan(starts) != np.isnan(num_bytes)) | (starts < 0) | (num_bytes <= 0)
        if wrong.any():
            row = number * BATCH_ROWS + int(wrong.argmax())
            must = "duration, offset and byte range must be valid"
            raise InputError(f"{path}: row {row}: {must}; the index is damaged.")
