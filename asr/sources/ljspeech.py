"""LJSpeech and corpora with the same layout: metadata.csv with ID|text|normalised text, and the folder wavs."""

from collections.abc import Iterator
from pathlib import Path

from asr.audio.load import AUDIO_SUFFIXES
from asr.data.manifest import named_lines
from asr.sources.entry import Problems, SourceEntry, SourceOptions, below

SUFFIXES = (".wav", *(suffix for suffix in AUDIO_SUFFIXES if suffix != ".wav"))


def read(source: Path, options: SourceOptions, problems: Problems) -> Iterator[SourceEntry]:
    """Read a metadata.csv or the folder that contains it; the text is the last column, with numbers spelled out."""
    table = source / "metadata.csv" if source.is_dir() else source
    wavs = options.root or table.parent / "wavs"
    for where, line in named_lines(table, "LJSpeech's metadata.csv"):
        name, *texts = line.rstrip("\r\n").split("|")
        if len(texts) not in (1, 2):
            problems.add(where, f"must be ID|TEXT or ID|TEXT|NORMALISED; got {1 + len(texts)} columns")
            continue
        base = below(wavs, name, where, problems)
        if base is not None:
            audio = next((path for suffix in SUFFIXES if (path := base.with_name(base.name + suffix)).is_file()), None)
            yield SourceEntry(where, audio or base.with_name(f"{base.name}.wav"), texts[-1] or texts[0], name)
