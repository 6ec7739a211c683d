"""LJSpeech and corpora with the same layout: metadata.csv with ID|text|normalised text, and the folder wavs.

An id may be the name of the audio with its suffix or its folder, as in the lists of VITS. One of three columns may name
the speaker instead: it shares no word with the text, and has fewer words, is a number, or repeats more often than the
texts. A normalised text is none of these.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from asr.apps.finetune.columns import AUDIO_COLUMNS, TEXT_COLUMNS, first_column
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, audio_beside, below
from asr.apps.finetune.rows import first_line
from asr.core.data.manifest import named_lines

Rows = list[tuple[str, list[str]]]  # the place of each line, file:line, and its columns


def accepts(path: Path) -> bool:
    """Return whether a folder has a metadata.csv of two or three fields without names, or a file is such a table."""
    table = _table(path)
    fields = first_line(table).split("|") if table.suffix == ".csv" else []
    return len(fields) in (2, 3) and first_column((*AUDIO_COLUMNS, *TEXT_COLUMNS), fields) is None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a metadata.csv or the folder that contains it; the text is the last column, with numbers spelled out."""
    table = _table(source)
    wavs = options.root or table.parent / "wavs"
    rows: Rows = []
    for where, line in named_lines(table, "LJSpeech's metadata.csv"):
        columns = line.rstrip("\r\n").split("|")
        if len(columns) in (2, 3):
            rows.append((where, columns))
        else:
            report.add(where, f"must be ID|TEXT or ID|TEXT|NORMALISED; got {len(columns)} columns")
    speaker = _speaker_column([columns for _, columns in rows if len(columns) == 3 and columns[2]])
    text = 1 if speaker == 2 else -1
    used = {"text": "column 2" if text == 1 else "last column"}
    used |= {} if speaker is None else {"speaker": f"column {speaker + 1}"}
    report.name_columns(used, ["column 2"] if speaker is None and any(len(columns) == 3 for _, columns in rows) else ())
    for where, columns in rows:
        name = columns[0]
        base = below(wavs, name, where, report)
        if base is not None:
            audio, beside = audio_beside(base, ".wav"), audio_beside(table.parent / name, ".wav")
            is_beside = options.root is None and not os.path.isfile(audio) and os.path.isfile(beside)
            named = None if speaker is None or len(columns) < 3 else columns[speaker]
            yield SourceEntry(where, beside if is_beside else audio, columns[text] or columns[1], name, speaker=named)


def _speaker_column(rows: Sequence[Sequence[str]]) -> int | None:
    """Return the number, from 0, of the column that names speakers in most rows; None if there is no such column."""
    texts, last = ({row[column] for row in rows} for column in (1, 2))
    if sum(_names_no_text(row[2], row[1], may_be_as_long=2 * len(last) <= len(texts)) for row in rows) > len(rows) / 2:
        return 2
    # A text of digits also has fewer words than its normalised text; speakers repeat.
    repeats = 2 * len(texts) <= len(rows)
    return 1 if repeats and sum(_names_no_text(row[1], row[2]) for row in rows) > len(rows) / 2 else None


def _names_no_text(value: str, text: str, may_be_as_long: bool = False) -> bool:
    """Return whether a value has no word of a text, and fewer words, or is a number that the text has not."""
    words, of_text = (re.findall(r"\w+", each.casefold()) for each in (value, text))
    is_number = value.isdecimal() and not any(map(str.isdecimal, text))
    return (is_number or len(words) < len(of_text) + may_be_as_long) and not {*words} & {*of_text}


def _table(source: Path) -> Path:
    return source / "metadata.csv" if source.is_dir() else source
