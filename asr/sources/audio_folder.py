"""Hugging Face's audio folders: audio files beside metadata.csv or metadata.jsonl with the column file_name."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr.data.manifest import named_lines, parse_object
from asr.errors import InputError
from asr.sources.entry import Problems, SourceEntry, SourceOptions, below, speaker_of, text_column

NAMES = ("metadata.csv", "metadata.jsonl")


def read(source: Path, options: SourceOptions, problems: Problems) -> Iterator[SourceEntry]:
    """Read the metadata of a folder, or a metadata file.

    Raises:
        InputError: there is no metadata file, or it has no column of file names or texts.
    """
    metadata = next((source / name for name in NAMES if (source / name).is_file()), None) if source.is_dir() else source
    if metadata is None:
        must = f"{source}: must hold metadata.csv or metadata.jsonl"
        raise InputError(f"{must}; it holds neither. Give the folder of a split, such as {source / 'train'}.")
    column: str | None = None
    for where, row in _rows(metadata, problems):
        if column is None:
            if "file_name" not in row:
                raise InputError(f"{where}: must have the column file_name; it has {', '.join(row)}.")
            column = text_column(row, options, where)
        name, text = row.get("file_name"), row.get(column)
        if not isinstance(name, str) or not isinstance(text, str):
            problems.add(where, f"file_name and {column} must be texts; got {name!r} and {text!r}")
        elif audio := below(options.root or metadata.parent, name, where, problems):
            identity = row.get("id")
            yield SourceEntry(where, audio, text, None if identity is None else str(identity), speaker_of(row))


def _rows(metadata: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows with their places (file:line); a row of a CSV file may span several lines."""
    if metadata.suffix == ".jsonl":
        for where, line in named_lines(metadata, "metadata of an audio folder"):
            try:
                yield where, parse_object(line, where)
            except InputError as error:
                problems.messages.append(str(error))
        return
    place = str(metadata)

    def lines() -> Iterator[str]:
        nonlocal place
        for where, line in named_lines(metadata, "metadata of an audio folder"):
            place = where
            yield line

    reader = csv.reader(lines(), strict=True)
    try:
        columns = next(reader, [])
        for values in reader:
            if len(values) == len(columns):
                yield place, dict(zip(columns, values, strict=True))
            else:
                problems.add(place, f"must have {len(columns)} columns, as the first line; got {len(values)}")
    except csv.Error as error:
        raise InputError(f"{place}: must be CSV; {error}.") from None
