"""LJSpeech and corpora with the same layout: metadata.csv with ID|text|normalised text, and the folder wavs."""

from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.entry import (
    AUDIO_COLUMNS,
    TEXT_COLUMNS,
    SourceEntry,
    SourceOptions,
    SourceReport,
    audio_beside,
    below,
    first_column,
)
from asr.apps.finetune.rows import first_line
from asr.core.data.manifest import named_lines


def accepts(path: Path) -> bool:
    """Return whether a folder has a metadata.csv of two or three fields without names, or a file is such a table."""
    table = _table(path)
    fields = first_line(table).split("|") if table.suffix == ".csv" else []
    return len(fields) in (2, 3) and first_column((*AUDIO_COLUMNS, *TEXT_COLUMNS), fields) is None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a metadata.csv or the folder that contains it; the text is the last column, with numbers spelled out."""
    table = _table(source)
    wavs = options.root or table.parent / "wavs"
    report.name_columns({"text": "last column"})
    for where, line in named_lines(table, "LJSpeech's metadata.csv"):
        name, *texts = line.rstrip("\r\n").split("|")
        if len(texts) not in (1, 2):
            report.add(where, f"must be ID|TEXT or ID|TEXT|NORMALISED; got {1 + len(texts)} columns")
            continue
        base = below(wavs, name, where, report)
        if base is not None:
            yield SourceEntry(where, audio_beside(base, ".wav"), texts[-1] or texts[0], name)


def _table(source: Path) -> Path:
    return source / "metadata.csv" if source.is_dir() else source
