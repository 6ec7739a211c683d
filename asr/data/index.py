"""An index: the columns of a manifest in an Arrow file, which all processes of a machine map into their memory.

A row is an utterance, in the manifest's order. Ten million rows cost each process only the pages that it touches, and
no Python objects; `Utterance` objects exist for the rows of the batch in hand.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from asr.data.manifest import Utterance
from asr.errors import InputError, one_line

FORMAT = b"asr.index"  # key of the file's metadata
FORMAT_NUMBER = b"1"
SOURCE = b"asr.index.source"  # key of the file's metadata: hash of what the index was made from
BATCH_ROWS = 16_384  # of each record batch but the last: the batch of a row is a division

# Text columns are bytes: names of files may hold bytes that are not UTF-8, which Arrow's strings cannot.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(), nullable=False),
        pa.field("audio_filepath", pa.binary(), nullable=False),  # as written; relative to the manifest's folder
        pa.field("duration", pa.float64(), nullable=False),  # seconds
        pa.field("offset", pa.float64()),  # seconds; null: the utterance is the whole file
        pa.field("speaker", pa.binary()),
        pa.field("text", pa.binary(), nullable=False),  # as written
    ],
    metadata={FORMAT: FORMAT_NUMBER},
)


def encoded(text: str) -> bytes:
    """Return the bytes of a text; those that were not UTF-8 when it was read become what they were."""
    return text.encode("utf-8", "surrogateescape")


def decoded(content: bytes) -> str:
    """Return the text of bytes; the inverse of `encoded`."""
    return content.decode("utf-8", "surrogateescape")


class Index:
    """The rows of one index.

    Args:
        batches: of `SCHEMA`, each of `BATCH_ROWS` rows but the last.
        source: hash of what the rows were made from; None: nothing is known of it.
    """

    def __init__(self, batches: list[pa.RecordBatch], source: str | None = None) -> None:
        self.batches = batches
        self.source = source
        self.num_rows = sum(batch.num_rows for batch in batches)

    def utterance(self, row: int) -> Utterance:
        """Make the utterance of a row; its audio path is as written."""
        number, place = divmod(row, BATCH_ROWS)
        name, path, duration, offset, speaker, text = (column[place].as_py() for column in self.batches[number].columns)
        return Utterance(
            decoded(path), duration, decoded(text), decoded(name), offset, None if speaker is None else decoded(speaker)
        )

    def column(self, name: str) -> np.ndarray:
        """Return a column of numbers, (num_rows,)."""
        parts = [batch.column(name).to_numpy(zero_copy_only=False) for batch in self.batches]
        return np.concatenate(parts) if parts else np.zeros(0)


def record_batches(utterances: Iterable[Utterance]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of utterances, whose audio paths are kept as they are."""
    utterances = iter(utterances)
    while rows := list(islice(utterances, BATCH_ROWS)):
        arrays = [
            _texts([row.id for row in rows]),
            _texts([row.audio_filepath for row in rows]),
            pa.array([row.duration for row in rows], pa.float64()),
            pa.array([row.offset for row in rows], pa.float64()),
            _texts([row.speaker for row in rows]),
            _texts([row.text for row in rows]),
        ]
        yield pa.record_batch(arrays, schema=SCHEMA)


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Make a column of bytes."""
    try:
        return pa.array(values, pa.string()).view(pa.binary())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return pa.array([None if value is None else encoded(value) for value in values], pa.binary())


def write_index(file: BinaryIO, utterances: Iterable[Utterance], source: str) -> None:
    """Write the index of utterances; memory holds one record batch at a time.

    Args:
        file: to write to.
        utterances: whose audio paths are relative to the folder of the manifest, or of the index.
        source: hash of what the utterances are made from.
    """
    with pa.ipc.new_file(file, SCHEMA.with_metadata({**SCHEMA.metadata, SOURCE: source.encode()})) as writer:
        for batch in record_batches(utterances):
            writer.write_batch(batch)


def open_index(path: Path) -> Index:
    """Map an index into memory.

    Raises:
        InputError: the file is not a whole index of this format.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        metadata = reader.schema.metadata or {}
        if metadata.get(FORMAT) != FORMAT_NUMBER or not reader.schema.equals(SCHEMA):
            raise InputError(f"{path}: must be an index of format {FORMAT_NUMBER.decode()}; it is another Arrow file.")
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: must be an index; {one_line(error)}.") from None
    sizes = [batch.num_rows for batch in batches]
    if any(size != BATCH_ROWS for size in sizes[:-1]) or (sizes and not 0 < sizes[-1] <= BATCH_ROWS):
        raise InputError(f"{path}: must be an index whose record batches have {BATCH_ROWS} rows; it is damaged.")
    return Index(batches, metadata.get(SOURCE, b"").decode() or None)
