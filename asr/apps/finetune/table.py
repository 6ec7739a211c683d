"""Tables: CSV or TSV whose first line names a column of audio files and a column of texts.

The columns may have any name of `AUDIO_COLUMNS` and `TEXT_COLUMNS`. Optional columns are an id, the speaker and, for
segments of recordings, the start with the duration or the end, in seconds. Without a start, the utterance is the whole
file, and the columns of duration and end are ignored: such durations are often rounded. Metadata of an audio folder,
of LJSpeech or of Common Voice are these formats, not tables. Texts must not be empty.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from asr.apps.finetune import audio_folder, common_voice, ljspeech
from asr.apps.finetune.entry import (
    AUDIO_COLUMNS,
    ID_COLUMNS,
    SPEAKER_COLUMNS,
    TEXT_COLUMNS,
    SourceEntry,
    SourceOptions,
    SourceReport,
    audio_column,
    first_column,
    located,
    text_column,
    value_of,
)
from asr.apps.finetune.rows import TABLE_SUFFIXES, columns_of, table_rows
from asr.errors import InputError

OPTIONAL = {
    "speaker": SPEAKER_COLUMNS,
    "id": ID_COLUMNS,
    "start": ("start", "offset", "start_time"),
    "duration": ("duration",),
    "end": ("end", "end_time"),
}
Columns = Mapping[str, str | None]  # the column for each purpose; None: there is no such column


def accepts(path: Path) -> bool:
    """Return whether a path is a table, or a folder with one table, that no special format reads.

    The table of a folder must have a column of audio or texts, because a folder may contain any other table.
    """
    table = _only_table(path)
    if table is None or any(special.accepts(table) for special in (audio_folder, ljspeech, common_voice)):
        return False
    return path.is_file() or first_column((*AUDIO_COLUMNS, *TEXT_COLUMNS), columns_of(table)) is not None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a table, or the only table of a folder; audio paths are absolute or relative to the table."""
    table = _only_table(source) if source.is_dir() else source
    if table is None:
        raise InputError(f"{source}: must hold one .csv or .tsv; it holds none or several. Give the file.")
    columns: Columns | None = None
    for where, row in table_rows(table, "a table, CSV or TSV", report):
        if columns is None:
            columns = _columns(row, options, where)
            report.name_columns(columns, row)
        if entry := _entry(row, columns, where, options.root or table.parent, report):
            yield entry


def _only_table(path: Path) -> Path | None:
    """Return a table, or the only table of a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    tables = [file for file in files if file.suffix.lower() in TABLE_SUFFIXES and file.is_file()]
    return tables[0] if len(tables) == 1 else None


def _columns(row: Mapping[str, str], options: SourceOptions, where: str) -> Columns:
    columns = {"audio": audio_column(row, options, where), "text": text_column(row, options, where)}
    optional = {purpose: first_column(names, row) for purpose, names in OPTIONAL.items()}
    if optional["start"] is None:
        optional |= {"duration": None, "end": None}
    elif optional["duration"] is not None:
        optional["end"] = None
    return columns | optional


def _entry(
    row: Mapping[str, str], columns: Columns, where: str, root: Path, report: SourceReport
) -> SourceEntry | None:
    """Return the entry of a row, or None after adding a problem."""
    name, text = (row[str(columns[purpose])].strip() for purpose in ("audio", "text"))
    audio = located(root, name, where, report)
    if audio is None:
        return None
    if not text:
        report.add(where, f"the text must not be empty; {columns['text']} is")
        return None
    try:
        start, duration, end = (_seconds(row, columns[purpose]) for purpose in ("start", "duration", "end"))
    except ValueError as error:
        report.add(where, str(error))
        return None
    if start is not None and end is not None:
        duration = round(end - start, 6)
    if start is None:
        duration = None
    identity = value_of(row, columns["id"]) or (name if start is None else f"{name}@{start:g}")
    return SourceEntry(where, audio, text, identity, value_of(row, columns["speaker"]), start, duration)


def _seconds(row: Mapping[str, str], column: str | None) -> float | None:
    """Return a number of seconds; None if there is no such column, or no value.

    Raises:
        ValueError: the value is not a number of seconds; the message is a reason for a problem.
    """
    value = value_of(row, column)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{column} must be a number of seconds, not negative; got {value!r}")
    return seconds
