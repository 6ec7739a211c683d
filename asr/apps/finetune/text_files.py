"""Audio files at any depth of a folder, each with its text in a file of the same name that ends in .txt.

An audio file without such a text, and one whose text is empty, is a problem. Line breaks in a text become spaces.
"""

from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.base.audio.load import AUDIO_SUFFIXES, find_audio
from asr.core.data.manifest import named_lines
from asr.errors import InputError


def accepts(path: Path) -> bool:
    """Return whether a path is a folder that contains, at any depth, an audio file with its text."""
    texts = _texts(path)
    return bool(texts) and any(
        file.with_suffix("") in texts for file in path.rglob("*.*") if file.suffix.lower() in AUDIO_SUFFIXES
    )


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read all audio files below a folder, in the order of their paths; ids are paths without suffix.

    Raises:
        AudioError: there is no audio below the folder.
        InputError: the source is not a folder.
    """
    if not source.is_dir():
        raise InputError(f"{source}: must be a folder of audio files with texts; it is not a folder.")
    paths = find_audio(source)
    report.dropped["unmatched .txt file"] = len(_texts(source) - {audio.with_suffix("") for audio in paths})
    for audio in paths:
        path = audio.with_suffix(".txt")
        if not path.is_file():
            report.add(str(audio), f"must have its text beside it, {path.name}; there is no such file")
        elif text := " ".join(line.strip() for _, line in named_lines(path, "the text of an audio file")):
            yield SourceEntry(str(path), audio, text, str(audio.relative_to(source).with_suffix("")))
        else:
            report.add(str(path), "the text must not be empty; it is")


def _texts(folder: Path) -> set[Path]:
    """Return the paths of the texts below a folder, without their suffix."""
    return {path.with_suffix("") for path in folder.rglob("*.txt") if not path.name.startswith(".")}
