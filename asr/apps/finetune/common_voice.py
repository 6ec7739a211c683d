"""Tables of Common Voice (validated.tsv, train.tsv and others), in the folder that contains the folder clips.

Of a folder, validated.tsv is read, which has the speech of train.tsv, dev.tsv and test.tsv, and more.
"""

from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.columns import channel_columns, channels_of, check_times, unread_times
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, below
from asr.apps.finetune.rows import columns_of
from asr.core.data.manifest import named_lines
from asr.errors import InputError

NEEDED = ("client_id", "path", "sentence")


def accepts(path: Path) -> bool:
    """Return whether a .tsv, or the validated.tsv of a folder, has the columns of Common Voice."""
    table = _table(path)
    return table.suffix == ".tsv" and {*NEEDED} <= {*columns_of(table)}


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a table of Common Voice; texts are unchanged, with case and punctuation."""
    table = _table(source)
    clips = options.root or table.parent / "clips"
    lines = named_lines(table, "a table of Common Voice")
    where, head = next(lines, (str(table), ""))
    columns = head.rstrip("\r\n").split("\t")
    if missing := [name for name in NEEDED if name not in columns]:
        raise InputError(f"{where}: the first line must name the columns {', '.join(NEEDED)}; missing {missing[0]}.")
    report.name_columns(
        {"audio": "path", "text": "sentence", "speaker": "client_id", "channel": next(channel_columns(columns), None)},
        columns,
    )
    times = unread_times(columns)
    for where, line in lines:
        values = line.rstrip("\r\n").split("\t")
        if len(values) != len(columns):
            report.add(where, f"must have {len(columns)} columns, as the first line; got {len(values)}")
            continue
        row = dict(zip(columns, values, strict=True))
        name = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"  # no suffix in the first releases
        if audio := below(clips, name, where, report):
            check_times(row, times, where)
            channels = channels_of(row)
            yield SourceEntry(where, audio, row["sentence"], audio.stem, speaker=row["client_id"], channels=channels)


def _table(source: Path) -> Path:
    return source / "validated.tsv" if source.is_dir() else source
