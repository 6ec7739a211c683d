"""Tables: CSV or TSV whose first line names a column of audio files and a column of texts, or JSON with such keys.

The audio of JSON may be an object with the path and times.
The columns may have any name of `AUDIO_COLUMNS` and `TEXT_COLUMNS`. Optional columns are an id, the speaker, the
channel and, for segments of recordings, the start with the duration or the end. Without a start, the utterance is the
whole file, and a duration is ignored: it is often rounded. Metadata of an audio folder, of LJSpeech or of Common Voice
are these formats, not tables. Texts must not be empty.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.apps.finetune import audio_folder, common_voice, label_studio, ljspeech
from asr.apps.finetune.columns import (
    AUDIO_COLUMNS,
    TEXT_COLUMNS,
    Columns,
    audio_column,
    columns_by_purpose,
    first_column,
    row_entry,
)
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, located
from asr.apps.finetune.label_studio import EXPORT, LOCAL, UPLOADED
from asr.apps.finetune.rows import TABLE_SUFFIXES, columns_of, first_object, json_objects, table_rows
from asr.errors import InputError, shown

JSON_SUFFIXES = (".json", ".jsonl")
STUDIO = {"annotation_id", "annotator"}  # columns of Label Studio's CSV, which lacks the places of texts


def accepts(path: Path) -> bool:
    """Return whether a path is a table, or a folder with one table, that no special format reads.

    The table of a folder must have a column of audio or texts, because a folder may contain any other table.
    """
    if path.suffix.lower() in JSON_SUFFIXES:
        keys = first_object(path)
        is_special = "audio_filepath" in keys or any(each.accepts(path) for each in (audio_folder, label_studio))
        return not is_special and all(first_column(names, keys) for names in (AUDIO_COLUMNS, TEXT_COLUMNS))
    table = _only_table(path)
    if table is None or any(special.accepts(table) for special in (audio_folder, ljspeech, common_voice)):
        return False
    return path.is_file() or first_column((*AUDIO_COLUMNS, *TEXT_COLUMNS), columns_of(table)) is not None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a table, or the only table of a folder; audio paths are absolute or relative to the table."""
    table = _only_table(source) if source.is_dir() else source
    if table is None:
        raise InputError(f"{source}: must hold one .csv or .tsv; it holds none or several. Give the file.")
    rows = json_objects if table.suffix.lower() in JSON_SUFFIXES else table_rows
    columns: Columns | None = None
    keys: list[str] = []
    for where, written in rows(table, "a table, CSV or TSV", report):
        row = _without_nesting(written)
        if row.keys() >= STUDIO:
            raise InputError(f"{where}: must be a table; got a CSV export of Label Studio. {EXPORT}.")
        if columns is None or not row.keys() <= {*keys}:  # objects of JSON may have different keys
            keys = [*dict.fromkeys((*keys, *row))]
            audio, columns = audio_column(keys, options, where), columns_by_purpose(keys, options, where)
            report.name_columns({"audio": audio} | columns.purposes(), row)
        if entry := _entry(row, audio, columns, where, options.root or table.parent, report):
            yield entry


def _only_table(path: Path) -> Path | None:
    """Return a table, or the only table of a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    tables = [file for file in files if file.suffix.lower() in TABLE_SUFFIXES and file.is_file()]
    return tables[0] if len(tables) == 1 else None


def _without_nesting(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose audio is a name, not an object with the path and, perhaps, times."""
    column = first_column(AUDIO_COLUMNS, row)
    audio = None if column is None else row[column]
    if not isinstance(audio, dict) or "path" not in audio:
        return {**row}
    others = {key: value for key, value in audio.items() if key != "path"}
    return {**others, **row, str(column): audio["path"]}


def _entry(
    row: Mapping[str, Any], audio_name: str, columns: Columns, where: str, root: Path, report: SourceReport
) -> SourceEntry | None:
    """Return the entry of a row, or None after adding a problem."""
    name, text = row.get(audio_name), row.get(columns.text)
    if not isinstance(name, str) or not isinstance(text, str):
        report.add(where, f"{audio_name} and {columns.text} must be texts; got {shown(name)} and {shown(text)}")
        return None
    name, text = name.strip(), text.strip()
    if any(path in name for path in (UPLOADED, LOCAL)) and not os.path.exists(root / name):
        report.add(where, f"audio must be a file; got {shown(name)}, a path of Label Studio. {EXPORT}")
        return None
    audio = located(root, name, where, report)
    if audio is None:
        return None
    if not text:
        report.add(where, f"the text must not be empty; {columns.text} is")
        return None
    return row_entry({**row, columns.text: text}, columns, where, audio, name, report)
