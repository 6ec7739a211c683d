"""Index Parquet files of Hugging Face's datasets library without copying their audio.

A file has row groups of about 100 MB; within a row group, a column is contiguous. The datasets library does not
compress the audio column, so the audio file of a row is a byte range of the Parquet file, and training reads only this
range. If the column were compressed, training would have to read the whole row group for each utterance.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from asr.audio.load import audio_info
from asr.data.foreign_shards import MAX_TEXT_BYTES, OnShard
from asr.data.manifest import Extent, Utterance, parse_utterance
from asr.errors import InputError, one_line
from asr.storage.location import file_name, printable_url
from asr.storage.range_file import RangeFile

PARQUET_SUFFIX = ".parquet"
MAX_ROW_GROUP_BYTES = 4 << 30  # maximum bytes of audio in a row group, which is read into memory
BATCH_ROWS = 16  # number of rows that are decoded at a time
PROBE_BYTES = 64  # number of bytes at the start of an audio file that are searched for first
SPEAKER_COLUMNS = ("speaker", "speaker_id")


class _Columns(NamedTuple):
    """Names of the columns; None: the file has no such column."""

    audio: str  # a struct whose field `bytes` is the audio file
    text: str
    id: str | None
    speaker: str | None


def index_parquet(files: Sequence[str], text_column: str, on_shard: OnShard) -> Iterator[Utterance]:
    """Yield the utterances of Parquet files. Their audio is read once, to determine durations.

    Ids are in the column `id`; without this column, an id consists of the file's name and the row's number.

    Args:
        files: paths or URLs.
        text_column: name of the column of texts.
        on_shard: called after each file.

    Raises:
        InputError: a file has another format, its audio is compressed, or a row is not an utterance.
        StoreError: a file cannot be read.
    """
    for path in files:
        yield from _utterances(path, text_column)
        on_shard()


def _utterances(path: str, text_column: str) -> Iterator[Utterance]:
    file, name, row = RangeFile(path), printable_url(path), 0
    try:
        with pq.ParquetFile(io.BufferedReader(file), pre_buffer=False) as parquet:
            columns = _columns(parquet.schema_arrow, text_column, name)
            for number in range(parquet.num_row_groups):
                start, num_bytes = _chunk(parquet.metadata.row_group(number), columns.audio, file.size, name)
                chunk, position = file.hold(start, num_bytes), 0
                for entry in _rows(parquet, number, columns):
                    where = f"{name}: row {row}"
                    content = entry.pop("audio")
                    longest = max((value for value in entry.values() if isinstance(value, str)), key=len, default="")
                    if len(longest) > MAX_TEXT_BYTES:  # a compressed column can hold any number of equal bytes
                        must = f"{where}: texts must have at most {MAX_TEXT_BYTES:,} characters"
                        raise InputError(f"{must}; got {len(longest):,}.")
                    position = _place(chunk, content, position, where)
                    duration = _seconds(content, where)
                    entry = {"id": f"{file_name(path).removesuffix(PARQUET_SUFFIX)}-{row}"} | entry
                    utterance = parse_utterance(entry | {"audio_filepath": path, "duration": duration}, where, None)
                    yield replace(utterance, extent=Extent(start + position, len(content)))
                    position += len(content)
                    row += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: must be a complete Parquet file; got: {one_line(error)}.") from None


def _columns(schema: pa.Schema, text_column: str, name: str) -> _Columns:
    """Find the columns.

    Raises:
        InputError: there is no column of texts, or there is not exactly one column of audio.
    """
    there = f"it has the columns {', '.join(schema.names)}"
    audio = [field.name for field in schema if pa.types.is_struct(field.type) and _has_bytes(field.type)]
    if len(audio) != 1:
        must = f"{name}: must have exactly one column of audio, a struct with the field bytes"
        raise InputError(f"{must}; got {', '.join(audio) or 'none'}: {there}.")
    if text_column not in schema.names:
        must = f"{name}: must have the column of texts {text_column!r}"
        raise InputError(f"{must}; {there}. Name another column with --text-column.")
    speaker = next((column for column in SPEAKER_COLUMNS if column in schema.names), None)
    return _Columns(audio[0], text_column, "id" if "id" in schema.names else None, speaker)


def _has_bytes(struct: pa.StructType) -> bool:
    index = struct.get_field_index("bytes")
    return index >= 0 and (pa.types.is_binary(struct[index].type) or pa.types.is_large_binary(struct[index].type))


def _chunk(group: pq.RowGroupMetaData, audio: str, size: int, name: str) -> tuple[int, int]:
    """Return the position of the audio column of a row group in the file, and the column's number of bytes.

    Raises:
        InputError: the column extends beyond the end of the file, or is too large.
    """
    paths = [group.column(index).path_in_schema for index in range(group.num_columns)]
    column = group.column(paths.index(f"{audio}.bytes"))
    dictionary, num_bytes = column.dictionary_page_offset, column.total_compressed_size
    if column.compression != "UNCOMPRESSED":
        must = f"{name}: audio must be uncompressed in the Parquet file, as datasets (5 or newer) writes it"
        read = f"it is compressed, so each utterance would require reading {num_bytes / 1e6:,.1f} MB"
        raise InputError(f"{must}; {read}. Write it again: load_dataset('parquet', ...).to_parquet(...).")
    start = column.data_page_offset if dictionary is None else min(dictionary, column.data_page_offset)
    if start < 0 or num_bytes < 0 or start + num_bytes > size:
        raise InputError(f"{name}: must be a complete Parquet file; a row group extends beyond its end.")
    if num_bytes > MAX_ROW_GROUP_BYTES:
        must = f"{name}: a row group must have at most {MAX_ROW_GROUP_BYTES >> 30} GiB of audio"
        raise InputError(f"{must}; got {num_bytes / 2**30:.1f}. Write the file again with smaller row groups.")
    return start, num_bytes


def _rows(parquet: pq.ParquetFile, number: int, columns: _Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of a row group as mappings with the keys of a manifest line, and `audio`, the audio file."""
    given = {"text": columns.text, "id": columns.id, "speaker": columns.speaker}
    named = {key: column for key, column in given.items() if column is not None}
    wanted = [f"{columns.audio}.bytes", *named.values()]
    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=wanted, use_threads=False):
        for row in batch.to_pylist():
            values: Mapping[str, Any] = {key: row[column] for key, column in named.items()}
            present = {key: value for key, value in values.items() if value is not None or key == "text"}
            yield {"audio": (row[columns.audio] or {}).get("bytes"), **present}


def _place(chunk: bytes, content: bytes | None, after: int, where: str) -> int:
    """Return the position of an audio file in the bytes of its column.

    Args:
        chunk: bytes of the column.
        content: content of the audio file.
        after: end of the previous audio file.
        where: file and row, for errors.

    Raises:
        InputError: the row has no audio file, or the column is compressed.
    """
    if not content:
        raise InputError(f"{where}: audio must be in the Parquet file; the row has none, or only its path.")
    position = chunk.find(content[:PROBE_BYTES], after)
    if position < 0 or not chunk.startswith(content, position):
        position = chunk.find(content, after)
    if position < 0:
        position = chunk.find(content)  # equal contents are stored only once, at an earlier row
    if position < 0:
        must = f"{where}: audio must be uncompressed in the Parquet file, as datasets (5 or newer) writes it"
        read = f"it is compressed, so each utterance would require reading {len(chunk) / 1e6:,.1f} MB"
        raise InputError(f"{must}; {read}. Write it again: load_dataset('parquet', ...).to_parquet(...).")
    return position


def _seconds(content: bytes, where: str) -> float:
    sample_rate, _, num_samples = audio_info(where, content)
    return num_samples / sample_rate
