"""Code shared by all formats: entries, problems, and the conversion of entries to utterances from audio headers."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from asr.audio.load import END_TOLERANCE_SECONDS, AudioInfo, audio_info
from asr.data.manifest import Utterance, parse_utterance
from asr.errors import InputError

THREADS = 8  # reading headers is limited by the disk
CHUNK = 4096  # number of entries whose audio is examined at a time
TEXT_COLUMNS = ("text", "transcription", "sentence", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An utterance in another toolkit's format, before its audio is examined.

    Args:
        where: place in the source, file:line.
        audio: path of the audio file.
        text: transcript of the utterance.
        id: id that is unique in a source; None: the name of the audio file is used.
        speaker: name of the speaker; None: unknown.
        offset: start of the utterance in the file, in seconds; None: the utterance is the whole file.
        duration: duration in seconds; None: up to the end of the file, whose length is read from the file.
        max_overshoot: maximum time in seconds by which the utterance may exceed the end of the file; it is then cut.
        channels: channels of the file to which the text belongs; (): all.
    """

    where: str
    audio: Path
    text: str
    id: str | None = None
    speaker: str | None = None
    offset: float | None = None
    duration: float | None = None
    max_overshoot: float = END_TOLERANCE_SECONDS
    channels: tuple[Any, ...] = ()


@dataclass
class SourceOptions:
    """SourceOptions for reading a source.

    Args:
        root: folder for relative audio paths; None: the format's default folder.
        audio_dir: output folder for audio that the source contains; None: not given.
        on_audio_names: called with the names of the files and folders that will be written in `audio_dir`, before
            anything is written; raises InputError if they would replace other files. None: they are replaced.
        text_column: column of the texts in tables; None: the first of `TEXT_COLUMNS` that exists.
        recordings: lhotse's file of recordings, which supervisions refer to.
    """

    root: Path | None = None
    audio_dir: Path | None = None
    on_audio_names: Callable[[set[str]], None] | None = None
    text_column: str | None = None
    recordings: Path | None = None


Reader = Callable[[Path, SourceOptions, "Problems"], Iterator[SourceEntry]]


@dataclass
class Problems:
    """Messages, with file and line, about entries that could not be converted, and the number of entries that were cut.

    Args:
        messages: a message for each entry that could not be converted.
        num_cut: number of utterances that were cut at the end of their recording.
    """

    messages: list[str] = field(default_factory=list)
    num_cut: int = 0

    def add(self, where: str, reason: str) -> None:
        """Add a problem at a place."""
        self.messages.append(f"{where}: {reason}")


def utterances(entries: Iterable[SourceEntry], problems: Problems) -> Iterator[Utterance]:
    """Examine the audio of entries in several threads, and yield utterances in the order of the entries."""
    first: dict[str, str] = {}
    remaining = iter(entries)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(remaining, CHUNK)):
            for entry, completed in zip(chunk, pool.map(_complete, chunk), strict=True):
                if isinstance(completed, str):
                    problems.messages.append(completed)
                elif completed.id in first:
                    problems.add(entry.where, f"ids must be unique; {completed.id!r} is at {first[completed.id]}")
                else:
                    first[completed.id] = entry.where
                    problems.num_cut += entry.duration is not None and completed.duration < entry.duration
                    yield completed


def _complete(entry: SourceEntry) -> Utterance | str:
    """Return the utterance of an entry, or a message if its audio is unusable."""
    line: dict[str, Any] = {"audio_filepath": str(entry.audio), "text": entry.text, "id": entry.id or entry.audio.stem}
    line |= {"offset": entry.offset, "speaker": entry.speaker, "duration": entry.duration}
    for key, value in {"text": entry.text, "id": entry.id, "speaker": entry.speaker}.items():
        if isinstance(value, str) and re.search("[\udc80-\udcff]", value):
            return f"{entry.where}: the {key} must be UTF-8; got {value!a}"
    try:
        info = _info(entry.audio)
        if entry.channels and info.num_channels > len(entry.channels):
            must = f"{entry.audio} must have no other channels, because they would be mixed under the text"
            given = f"the text belongs to channel {', '.join(map(str, entry.channels))} of {info.num_channels}"
            cure = "Write each channel to a file first (sox FILE NEW.wav remix 1; lhotse: CutSet.save_audios)"
            return f"{entry.where}: {must}; {given}. {cure}"
        seconds, start = info.num_samples / info.sample_rate, entry.offset or 0.0
        end = seconds if entry.duration is None else start + entry.duration
        if start >= seconds or end > seconds + entry.max_overshoot:
            span = f"from {start:g} to {end:g} s"
            return f"{entry.where}: the utterance must end within {entry.audio}; it is {span} of {seconds:g} s"
        if entry.duration is None or end > seconds + END_TOLERANCE_SECONDS:
            line["duration"] = seconds - start
        return parse_utterance(line, entry.where, Path())
    except InputError as error:
        message = str(error)
        return message if message.startswith(entry.where) else f"{entry.where}: {message}"


@lru_cache(maxsize=CHUNK)
def _info(audio: Path) -> AudioInfo:
    """Return the format and length of a file; cached, because several utterances may share a file."""
    return audio_info(audio)


def below(folder: Path, name: str, where: str, problems: Problems) -> Path | None:
    """Return the path of the named file below a folder; if it is outside the folder, add a problem and return None."""
    path = Path(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        problems.add(where, f"audio must be named relative to {folder}, and lie below it; got {name!r}")
        return None
    return folder / path


def text_column(columns: Iterable[str], options: SourceOptions, where: str) -> str:
    """Return the name of the column of texts.

    Raises:
        InputError: there is no such column.
    """
    present = list(columns)
    names = TEXT_COLUMNS if options.text_column is None else (options.text_column,)
    if column := next((name for name in names if name in present), None):
        return column
    raise InputError(
        f"{where}: must have a column {' or '.join(names)}; it has {', '.join(present) or 'none'}. Give --text-column."
    )


def speaker_of(row: dict[str, Any]) -> str | None:
    """Return the speaker of a row, if it has one."""
    name = next((row[column] for column in SPEAKER_COLUMNS if row.get(column) not in (None, "")), None)
    return None if name is None else str(name)
