"""Recordings at any depth of a folder, each with its text in a file of the same name that ends in .txt, or .TXT.

TIMIT's texts begin with the first and the last sample number of the recording, which are removed. A recording without
such a text, one with two, and one whose text is empty, is a problem. Line breaks in a text become spaces.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.base.audio.find import is_recording, search_audio
from asr.base.audio.load import audio_info
from asr.core.data.manifest import named_lines
from asr.errors import AudioError, InputError


def accepts(path: Path) -> bool:
    """Return whether a path is a folder that contains, at any depth, a recording with its text."""
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names if not name.startswith(".")]
    texts = _texts(files)
    return any(file.with_suffix("") in texts and not _is_text(file) and is_recording(file) for file in files)


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read all recordings below a folder, in the order of their paths; ids are paths without suffix.

    Raises:
        AudioError: there is no recording below the folder.
        InputError: the source is not a folder.
    """
    if not source.is_dir():
        raise InputError(f"{source}: must be a folder of audio files with texts; it is not a folder.")
    recordings, others = search_audio(source)
    texts = _texts(others)
    for file in others:
        if not _is_text(file):
            report.dropped[f"{file.suffix.lower() or 'other'} file (no recording)"] += 1
    unmatched = texts.keys() - {audio.with_suffix("") for audio in recordings}
    report.dropped[".txt file (no recording of the same name)"] = sum(len(texts[stem]) for stem in unmatched)
    for audio in recordings:
        paths = texts.get(audio.with_suffix(""), [])
        if not paths:
            report.add(str(audio), f"must have its text beside it, {audio.stem}.txt; there is no such file")
        elif len(paths) > 1:
            report.add(str(audio), f"must have one text; it has {' and '.join(path.name for path in paths)}")
        elif text := " ".join(line.strip() for _, line in named_lines(paths[0], "the text of an audio file")):
            text = _without_samples(text, audio)
            yield SourceEntry(str(paths[0]), audio, text, str(audio.relative_to(source).with_suffix("")))
        else:
            report.add(str(paths[0]), "the text must not be empty; it is")


def _without_samples(text: str, audio: Path) -> str:
    """Remove the sample numbers at the beginning of a text if they are those of the whole recording."""
    numbers = re.match(r"0 (\d+) ", text)
    try:
        if numbers and int(numbers[1]) in range((count := audio_info(audio).num_samples) - 1, count + 2):
            return text[numbers.end() :]
    except AudioError:  # it is reported when all audio is examined
        pass
    return text


def _is_text(file: Path) -> bool:
    return file.suffix.lower() == ".txt"


def _texts(files: Iterable[Path]) -> dict[Path, list[Path]]:
    """Map the paths of texts without their suffix to the texts; there are several if one ends in .txt, one in .TXT."""
    texts: dict[Path, list[Path]] = {}
    for file in filter(_is_text, files):
        texts.setdefault(file.with_suffix(""), []).append(file)
    return texts
