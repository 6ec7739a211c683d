"""What every format gives: entries, which become utterances once their audio was looked at, and problems."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from asr.audio.load import END_TOLERANCE_SECONDS, audio_info
from asr.data.manifest import Utterance, parse_utterance
from asr.errors import InputError

THREADS = 8  # reading a header is waiting for the disk
CHUNK = 4096  # entries that are completed at a time
TEXT_COLUMNS = ("text", "transcription", "sentence", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")


@dataclass(frozen=True, slots=True)
class Entry:
    """An utterance as a format has it.

    Args:
        where: it stands, file:line.
        audio: its file.
        text: what is said.
        id: unique in a source; None: after the audio's name.
        speaker: if known.
        offset: where it starts in the file, in seconds; None: it is the whole file.
        duration: in seconds; None: to the end of the file, which is looked at.
    """

    where: str
    audio: Path
    text: str
    id: str | None = None
    speaker: str | None = None
    offset: float | None = None
    duration: float | None = None


@dataclass
class Options:
    """What a user may say of a source.

    Args:
        root: folder that relative audio paths are relative to; None: as the format has it.
        audio_dir: gets audio that lies inside of the source; None: there is none.
        text_column: of tables; None: the first of `TEXT_COLUMNS` that there is.
        recordings: of lhotse, beside its supervisions.
    """

    root: Path | None = None
    audio_dir: Path | None = None
    text_column: str | None = None
    recordings: Path | None = None


Reader = Callable[[Path, Options, "Problems"], Iterator[Entry]]


@dataclass
class Problems:
    """What could not be taken over, each named by file and line."""

    messages: list[str] = field(default_factory=list)

    def add(self, where: str, reason: str) -> None:
        """Add what is wrong at a place."""
        self.messages.append(f"{where}: {reason}")


def utterances(entries: Iterable[Entry], problems: Problems) -> Iterator[Utterance]:
    """Look at the audio of entries, with a few threads, and make them utterances, in their order."""
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
                    yield completed


def _complete(entry: Entry) -> Utterance | str:
    """Make an utterance, or say why there is none."""
    line: dict[str, Any] = {"audio_filepath": str(entry.audio), "text": entry.text, "id": entry.id or entry.audio.stem}
    line |= {"offset": entry.offset, "speaker": entry.speaker, "duration": entry.duration}
    for what, value in {"text": entry.text, "id": entry.id, "speaker": entry.speaker}.items():
        if isinstance(value, str) and re.search("[\udc80-\udcff]", value):
            return f"{entry.where}: the {what} must be UTF-8; got {value!a}"
    try:
        if not entry.audio.is_file():
            return f"{entry.where}: {entry.audio}: no such audio file"
        seconds = _seconds(entry.audio)
        start = entry.offset or 0.0
        if entry.duration is None:
            line["duration"] = seconds - start
        elif start + entry.duration > seconds + END_TOLERANCE_SECONDS:
            stretch = f"from {start:g} to {start + entry.duration:g} s"
            return f"{entry.where}: the utterance must end within {entry.audio}; it is {stretch} of {seconds:g} s"
        return parse_utterance(line, entry.where, Path())
    except InputError as error:
        message = str(error)
        return message if message.startswith(entry.where) else f"{entry.where}: {message}"


@lru_cache(maxsize=CHUNK)
def _seconds(audio: Path) -> float:
    """Length of a file, which may hold many utterances."""
    info = audio_info(audio)
    return info.num_samples / info.sample_rate


def below(folder: Path, name: str, where: str, problems: Problems) -> Path | None:
    """Return the file of this name below a folder; a name that leads out of it is a problem."""
    path = Path(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        problems.add(where, f"audio must be named relative to {folder}, and lie below it; got {name!r}")
        return None
    return folder / path


def text_column(columns: Iterable[str], options: Options, where: str) -> str:
    """Choose the column of the texts.

    Raises:
        InputError: there is none.
    """
    there = list(columns)
    wanted = TEXT_COLUMNS if options.text_column is None else (options.text_column,)
    if chosen := next((name for name in wanted if name in there), None):
        return chosen
    raise InputError(
        f"{where}: must have a column {' or '.join(wanted)}; it has {', '.join(there) or 'none'}. Give --text-column."
    )


def speaker_of(row: dict[str, Any]) -> str | None:
    """Find who speaks, if a row says so."""
    name = next((row[column] for column in SPEAKER_COLUMNS if row.get(column) not in (None, "")), None)
    return None if name is None else str(name)
