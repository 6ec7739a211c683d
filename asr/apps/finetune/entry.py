"""Code shared by all formats: entries, options, reports, paths, and utterances of entries, from audio headers."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from asr.base.audio.find import AUDIO_SUFFIXES
from asr.base.audio.load import END_TOLERANCE_SECONDS, AudioInfo, audio_info
from asr.base.storage.location import scheme
from asr.core.data.manifest import Utterance, parse_utterance
from asr.errors import InputError, shown

THREADS = 8  # reading headers is limited by the disk
CHUNK = 4096  # number of entries whose audio is examined at a time
MAX_OVERSHOOT = 0.5  # seconds beyond the end of a recording that are cut, as in lhotse and Kaldi's extract-segments


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An utterance in another toolkit's format, before its audio is examined.

    Args:
        where: place in the source, file:line.
        audio: path of the audio file.
        text: transcript of the utterance.
        name: name of the utterance by its place in the source; the id if the source has no unique ids.
        id: id that the source gives; None: none.
        speaker: name of the speaker; None: unknown.
        offset: start of the utterance in the file, in seconds; None: the utterance is the whole file.
        duration: duration in seconds; None: up to the end of the file, whose length is read from the file.
        channels: channels of the file to which the text belongs; (): all.
    """

    where: str
    audio: Path
    text: str
    name: str
    id: str | None = None
    speaker: str | None = None
    offset: float | None = None
    duration: float | None = None
    channels: tuple[Any, ...] = ()

    @property
    def place(self) -> tuple[Path, float | None, float | None]:
        """The recording, and the part of it."""
        return self.audio, self.offset, self.duration


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
        dropped: numbers of other things that were not used, by their noun, such as {"prediction": 3}; a reason
            may follow it in parentheses.
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


def utterances(entries: Iterable[SourceEntry], report: SourceReport) -> list[Utterance]:
    """Examine the audio of entries in several threads; return the utterances, with unique ids, in their order."""
    examined: list[tuple[SourceEntry, Utterance]] = []
    remaining = iter(entries)
    complete = partial(_complete, info_of=lru_cache(maxsize=CHUNK)(audio_info))  # utterances may share a file
    with ThreadPoolExecutor(THREADS) as pool:
        while chunk := list(islice(remaining, CHUNK)):
            for entry, completed in zip(chunk, pool.map(complete, chunk), strict=True):
                if isinstance(completed, str):
                    report.problems.append(completed)
                else:
                    examined.append((entry, completed))
    ids = _identify(examined, report)
    last = _last_starts(entry for entry, _ in examined)
    first: dict[str, str] = {}
    found = []
    for (entry, utterance), identity in zip(examined, ids, strict=True):
        if identity in first:
            report.add(entry.where, f"ids must be unique; {identity!r} is at {first[identity]}")
        elif entry.duration is None and entry.offset is not None and entry.offset < last[entry.audio]:
            starts = f"it starts at {entry.offset:g} s, and another at {last[entry.audio]:g} s"
            report.add(entry.where, f"a segment without an end must be the last of {entry.audio}; {starts}")
        else:
            first[identity] = entry.where
            report.num_cut += entry.duration is not None and utterance.duration < entry.duration
            found.append(replace(utterance, id=identity))
    return found


def _identify(examined: Sequence[tuple[SourceEntry, Utterance]], report: SourceReport) -> list[str]:
    """Return the ids of utterances: those of the source, or else their names, or else their paths and starts.

    No two recordings, or parts of a recording, get the same id: a column `id` may name sentences, of which each is read
    by several speakers. Of entries with the same recording and the same id, the caller refuses all but the first.
    """
    entries = [entry for entry, _ in examined]
    given = [utterance.id for _, utterance in examined]
    repeated = _repeated(given, entries)
    if repeated is None:
        return given
    if any(entry.id is not None for entry in entries):
        column = report.columns.pop("id", "id")
        report.ignored[f"{column} (it repeats: {shown(repeated)})"] = None
    names = [entry.name for entry in entries]
    if _repeated(names, entries) is None:
        return names
    paths = [os.path.abspath(entry.audio) for entry in entries]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    parts = ["" if entry.offset is None else f"@{entry.offset}+{entry.duration}" for entry in entries]
    return [f"{os.path.relpath(path, folder)}{part}" for path, part in zip(paths, parts, strict=True)]


def _repeated(ids: Sequence[str], entries: Iterable[SourceEntry]) -> str | None:
    """Return the first id that two different recordings, or parts of a recording, have; None if there is none."""
    places: dict[str, object] = {}
    for identity, entry in zip(ids, entries, strict=True):
        if places.setdefault(identity, entry.place) != entry.place:
            return identity
    return None


def _last_starts(entries: Iterable[SourceEntry]) -> dict[Path, float]:
    """Return the last start of a segment in each recording."""
    last: dict[Path, float] = {}
    for entry in entries:
        last[entry.audio] = max(last.get(entry.audio, 0.0), entry.offset or 0.0)
    return last


def _complete(entry: SourceEntry, info_of: Callable[[Path], AudioInfo]) -> Utterance | str:
    """Return the utterance of an entry, or a message if its audio is unusable."""
    line: dict[str, Any] = {"audio_filepath": str(entry.audio), "text": entry.text, "id": entry.id or entry.name}
    line |= {"offset": entry.offset, "speaker": entry.speaker, "duration": entry.duration}
    for key, value in {"text": entry.text, "id": line["id"], "speaker": entry.speaker}.items():
        if isinstance(value, str) and re.search("[\udc80-\udcff]", value):
            return f"{entry.where}: the {key} must be UTF-8; got {value!a}"
    try:
        info = info_of(entry.audio)
        if entry.channels and info.num_channels > len(entry.channels):
            must = f"{entry.audio} must have no other channels, because they would be mixed under the text"
            given = f"the text belongs to channel {', '.join(map(str, entry.channels))} of {info.num_channels}"
            cure = "Write each channel to a file first (sox FILE NEW.wav remix 1; lhotse: CutSet.save_audios)"
            return f"{entry.where}: {must}; {given}. {cure}; remove the channel's name if it means something else"
        seconds, start = info.num_samples / info.sample_rate, entry.offset or 0.0
        end = seconds if entry.duration is None else start + entry.duration
        if start >= seconds or end > seconds + MAX_OVERSHOOT:
            span = f"from {start:g} to {end:g} s"
            must = f"{entry.where}: the utterance must end within {entry.audio}; it is {span} of {seconds:g} s"
            return f"{must}. If the file is this part alone, remove the times"
        if entry.duration is None or end > seconds + END_TOLERANCE_SECONDS:
            line["duration"] = seconds - start
        return parse_utterance(line, entry.where, Path())
    except InputError as error:
        message = str(error)
        return message if message.startswith(entry.where) else f"{entry.where}: {message}"


def below(folder: Path, name: str, where: str, report: SourceReport) -> Path | None:
    """Return the path of the named file below a folder; if it is outside the folder, add a problem and return None."""
    path = Path(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        report.add(where, f"audio must be named relative to {folder}, and lie below it; got {name!r}")
        return None
    return folder / path


def located(root: Path, name: str, where: str, report: SourceReport) -> Path | None:
    """Return the path of the named file, relative to a folder or absolute; for other names, add a problem.

    A file:// URL of this machine is the path that it names.
    """
    if local := re.match(r"(?i:file)://(?:localhost)?(/.*)", name, re.DOTALL):
        name = unquote(local[1])
    if scheme(name):
        must = f"audio must be a file; got the URL {shown(name)}"
        report.add(where, f"{must}. Fetch the file, and name the copy")
    elif not name or "\0" in name:
        report.add(where, f"audio must be the name of a file; got {name!r}")
    else:
        return root / name
    return None


def audio_beside(base: Path, preferred: str) -> Path:
    """Return the audio file of the name `base`, with or without a suffix; with the preferred one if there is none."""
    first = base.with_name(base.name + preferred)
    suffixes = (*AUDIO_SUFFIXES, *map(str.upper, AUDIO_SUFFIXES))
    paths = (first, *(base.with_name(base.name + suffix) for suffix in suffixes), base)
    missing = base if base.suffix.lower() in AUDIO_SUFFIXES else first
    # Path.is_file refuses names that are too long.
    return next((path for path in paths if os.path.isfile(path)), missing)
