"""Hugging Face's audio folders: audio files beside metadata.csv or metadata.jsonl with the column file_name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.apps.finetune.columns import Columns, columns_by_purpose, row_entry
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, below
from asr.apps.finetune.rows import columns_of, first_object, json_objects, parquet_columns, parquet_rows, table_rows
from asr.errors import InputError

NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # those that datasets reads
KIND = "metadata of an audio folder"


def accepts(path: Path) -> bool:
    """Return whether a folder has metadata with the column file_name, or a file is such metadata."""
    metadata = _metadata(path)
    if metadata is None or metadata.name not in NAMES:
        return False
    names = {".csv": columns_of, ".jsonl": first_object, ".parquet": parquet_columns}[metadata.suffix]
    return "file_name" in names(metadata)


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read the metadata of a folder, or a metadata file."""
    metadata = _metadata(source)
    if metadata is None:
        must = f"{source}: must hold one of {', '.join(NAMES)}"
        raise InputError(f"{must}; it holds none. Give the folder of a split, such as {source / 'train'}.")
    columns: Columns | None = None
    keys: list[str] = []
    for where, row in _rows(metadata, report):
        if columns is None and "file_name" not in row:
            raise InputError(f"{where}: must have the column file_name; it has {', '.join(row)}.")
        if columns is None or not row.keys() <= {*keys}:  # JSON lines may have different keys
            keys = [*dict.fromkeys((*keys, *row))]
            columns = columns_by_purpose(keys, options, where)
            report.name_columns({"audio": "file_name"} | columns.purposes(), row)
        name, text = row.get("file_name"), row.get(columns.text)
        if not isinstance(name, str) or not isinstance(text, str):
            report.add(where, f"file_name and {columns.text} must be texts; got {name!r} and {text!r}")
        elif (audio := below(options.root or metadata.parent, name, where, report)) and (
            entry := row_entry(row, columns, where, audio, audio.stem, report)
        ):
            yield entry


def _metadata(source: Path) -> Path | None:
    if not source.is_dir():
        return source
    return next((source / name for name in NAMES if (source / name).is_file()), None)


def _rows(metadata: Path, report: SourceReport) -> Iterator[tuple[str, dict[str, Any]]]:
    if metadata.suffix == ".parquet":
        yield from parquet_rows(metadata)
    else:
        yield from (json_objects if metadata.suffix == ".jsonl" else table_rows)(metadata, KIND, report)
