"""Code shared by all formats: entries, options, reports, columns, and utterances of entries, from audio headers."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from asr.base.audio.load import AUDIO_SUFFIXES, END_TOLERANCE_SECONDS, AudioInfo, audio_info
from asr.base.storage.location import scheme
from asr.core.data.manifest import Utterance, parse_utterance
from asr.errors import InputError, shown

THREADS = 8  # reading headers is limited by the disk
CHUNK = 4096  # number of entries whose audio is examined at a time
TEXT_COLUMNS = ("text", "transcription", "sentence", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
ID_COLUMNS = ("id", "utterance_id", "utt_id")
AUDIO_COLUMNS = (
    *("audio", "audio_filepath", "audio_path", "audio_file", "path", "file_path", "filepath"),
    *("file_name", "filename", "file", "wav", "wav_path", "wav_filename"),
)


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


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options for reading a source; `asr.apps.finetune.formats` names those that only some formats use.

    Args:
        root: folder for relative audio paths, and for the audio of Label Studio; None: the format's default folder.
        audio_dir: output folder for audio that the source contains; None: not given.
        on_audio_names: called with the names of the files and folders that will be written in `audio_dir`, before
            anything is written; raises InputError if they would replace other files. None: they are replaced.
        text_column: column of the texts in tables; None: the first of `TEXT_COLUMNS` that exists.
        audio_column: column of the audio in tables, key of the audio in Label Studio's tasks; None: the first of
            `AUDIO_COLUMNS` that exists.
        recordings: lhotse's file of recordings, which supervisions refer to.
        field: name of Label Studio's text field; None: regions must not have several.
        annotator: id or e-mail address of the annotator whose text is used where annotations of Label Studio differ.
        newest: whether the newest text is used where annotations of Label Studio differ.
        skip_bad: whether entries that cannot be converted are left out; otherwise they are an error.
    """

    root: Path | None = None
    audio_dir: Path | None = None
    on_audio_names: Callable[[set[str]], None] | None = None
    text_column: str | None = None
    audio_column: str | None = None
    recordings: Path | None = None
    field: str | None = None
    annotator: str | None = None
    newest: bool = False
    skip_bad: bool = False


Reader = Callable[[Path, SourceOptions, "SourceReport"], Iterator[SourceEntry]]


@dataclass
class SourceReport:
    """Report of a reader about its source, complete when all entries have been read.

    Args:
        problems: a message, with file and line, for each entry that could not be converted.
        columns: columns, keys or files that were read, by their purpose, such as {"audio": "path"}.
        ignored: columns that were not read, in order; the values are None.
        dropped: numbers of other things that were not used, by their noun, such as {"prediction": 3}.
        num_cut: number of utterances that were cut at the end of their recording.
    """

    problems: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, None] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    num_cut: int = 0

    def add(self, where: str, reason: str) -> None:
        """Add a problem at a place."""
        self.problems.append(f"{where}: {reason}")

    def name_columns(self, used: Mapping[str, str | None], present: Iterable[str] = ()) -> None:
        """Record the columns that are read, by their purpose (None: there is no such column), and ignored ones."""
        self.columns |= {purpose: column for purpose, column in used.items() if column is not None}
        self.ignored |= dict.fromkeys(column for column in present if column not in self.columns.values())


def utterances(entries: Iterable[SourceEntry], report: SourceReport) -> Iterator[Utterance]:
    """Examine the audio of entries in several threads, and yield utterances in the order of the entries."""
    first: dict[str, str] = {}
    remaining = iter(entries)
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(remaining, CHUNK)):
            for entry, completed in zip(chunk, pool.map(_complete, chunk), strict=True):
                if isinstance(completed, str):
                    report.problems.append(completed)
                elif completed.id in first:
                    report.add(entry.where, f"ids must be unique; {completed.id!r} is at {first[completed.id]}")
                else:
                    first[completed.id] = entry.where
                    report.num_cut += entry.duration is not None and completed.duration < entry.duration
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


def below(folder: Path, name: str, where: str, report: SourceReport) -> Path | None:
    """Return the path of the named file below a folder; if it is outside the folder, add a problem and return None."""
    path = Path(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        report.add(where, f"audio must be named relative to {folder}, and lie below it; got {name!r}")
        return None
    return folder / path


def located(root: Path, name: str, where: str, report: SourceReport) -> Path | None:
    """Return the path of the named file, relative to a folder or absolute; for other names, add a problem."""
    if scheme(name):
        must = f"audio must be a file; got the URL {shown(name)}"
        report.add(where, f"{must}. Fetch the file, and name the copy")
    elif not name or "\0" in name:
        report.add(where, f"audio must be the name of a file; got {name!r}")
    else:
        return root / name
    return None


def audio_beside(base: Path, preferred: str) -> Path:
    """Return the audio file whose name without suffix is `base`; with the preferred suffix if there is none."""
    first = base.with_name(base.name + preferred)
    paths = (first, *(base.with_name(base.name + suffix) for suffix in AUDIO_SUFFIXES))
    return next((path for path in paths if path.is_file()), first)


def first_column(names: Iterable[str], columns: Iterable[str]) -> str | None:
    """Return the column with the first of the names that a column has, in any case; None if there is no such column."""
    present = {column.strip().casefold(): column for column in columns}
    return next((present[name] for name in names if name in present), None)


def text_column(columns: Iterable[str], options: SourceOptions, where: str) -> str:
    """Return the name of the column of texts."""
    return _needed_column(list(columns), TEXT_COLUMNS, options.text_column, where, "--text-column")


def audio_column(columns: Iterable[str], options: SourceOptions, where: str) -> str:
    """Return the name of the column of audio files."""
    return _needed_column(list(columns), AUDIO_COLUMNS, options.audio_column, where, "--audio-column")


def _needed_column(columns: list[str], names: tuple[str, ...], given: str | None, where: str, option: str) -> str:
    column = first_column(names, columns) if given is None else given
    if column in columns:
        return column
    must = f"{where}: must have a column {' or '.join(names if given is None else (given,))}"
    raise InputError(f"{must}; it has {', '.join(columns) or 'none'}. Give {option}.")


def value_of(row: Mapping[str, Any], column: str | None) -> str | None:
    """Return the value of a row, such as its speaker, as a string; None if there is no such column, or no value."""
    value = None if column is None else row.get(column)
    return None if value in (None, "") else str(value)
