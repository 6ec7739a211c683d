"""Hugging Face's audio folders: audio files beside metadata.csv or metadata.jsonl with the column file_name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.apps.finetune.entry import (
    ID_COLUMNS,
    SPEAKER_COLUMNS,
    SourceEntry,
    SourceOptions,
    SourceReport,
    below,
    first_column,
    text_column,
    value_of,
)
from asr.apps.finetune.rows import columns_of, first_object, table_rows
from asr.core.data.manifest import named_lines, parse_object
from asr.errors import InputError

NAMES = ("metadata.csv", "metadata.jsonl")
KIND = "metadata of an audio folder"


def accepts(path: Path) -> bool:
    """Return whether a folder has metadata with the column file_name, or a file is such metadata."""
    metadata = _metadata(path)
    if metadata is None or metadata.name not in NAMES:
        return False
    return "file_name" in (columns_of(metadata) if metadata.suffix == ".csv" else first_object(metadata))


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read the metadata of a folder, or a metadata file."""
    metadata = _metadata(source)
    if metadata is None:
        must = f"{source}: must hold metadata.csv or metadata.jsonl"
        raise InputError(f"{must}; it holds neither. Give the folder of a split, such as {source / 'train'}.")
    column: str | None = None
    for where, row in _rows(metadata, report):
        if column is None:
            if "file_name" not in row:
                raise InputError(f"{where}: must have the column file_name; it has {', '.join(row)}.")
            column = text_column(row, options, where)
        speaker, identity = first_column(SPEAKER_COLUMNS, row), first_column(ID_COLUMNS, row)
        report.name_columns({"audio": "file_name", "text": column, "speaker": speaker, "id": identity}, row)
        name, text = row.get("file_name"), row.get(column)
        if not isinstance(name, str) or not isinstance(text, str):
            report.add(where, f"file_name and {column} must be texts; got {name!r} and {text!r}")
        elif audio := below(options.root or metadata.parent, name, where, report):
            yield SourceEntry(where, audio, text, value_of(row, identity), value_of(row, speaker))


def _metadata(source: Path) -> Path | None:
    if not source.is_dir():
        return source
    return next((source / name for name in NAMES if (source / name).is_file()), None)


def _rows(metadata: Path, report: SourceReport) -> Iterator[tuple[str, dict[str, Any]]]:
    if metadata.suffix != ".jsonl":
        yield from table_rows(metadata, KIND, report)
        return
    for where, line in named_lines(metadata, KIND):
        try:
            yield where, parse_object(line, where)
        except InputError as error:
            report.problems.append(str(error))
