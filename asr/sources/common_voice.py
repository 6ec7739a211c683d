"""Tables of Common Voice (validated.tsv, train.tsv and others), in the folder that contains the folder clips."""

from collections.abc import Iterator
from pathlib import Path

from asr.data.manifest import named_lines
from asr.errors import InputError
from asr.sources.entry import Problems, SourceEntry, SourceOptions, below

NEEDED = ("client_id", "path", "sentence")


def read(source: Path, options: SourceOptions, problems: Problems) -> Iterator[SourceEntry]:
    """Read a table of Common Voice; texts are unchanged, with case and punctuation.

    Raises:
        InputError: the file is not a table of Common Voice.
    """
    clips = options.root or source.parent / "clips"
    lines = named_lines(source, "a table of Common Voice")
    where, head = next(lines, (str(source), ""))
    columns = head.rstrip("\r\n").split("\t")
    if missing := [name for name in NEEDED if name not in columns]:
        raise InputError(f"{where}: the first line must name the columns {', '.join(NEEDED)}; missing {missing[0]}.")
    for where, line in lines:
        values = line.rstrip("\r\n").split("\t")
        if len(values) != len(columns):
            problems.add(where, f"must have {len(columns)} columns, as the first line; got {len(values)}")
            continue
        row = dict(zip(columns, values, strict=True))
        name = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"  # no suffix in the first releases
        if audio := below(clips, name, where, problems):
            yield SourceEntry(where, audio, row["sentence"], speaker=row["client_id"] or None)
