"""Columns of tables, and keys of lines, by their purpose; the same names, units and rules in each format with columns.

A column that says which part of a recording, or which channel, a text belongs to is read or refused, but never ignored:
the text would become that of the whole recording.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.core.data.manifest import known
from asr.errors import InputError, shown

TEXT_COLUMNS = ("text", "transcription", "sentence", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
ID_COLUMNS = ("id", "utterance_id", "utt_id")
AUDIO_COLUMNS = (
    *("audio", "audio_filepath", "audio_path", "audio_file", "path", "file_path", "filepath"),
    *("file_name", "filename", "file", "wav", "wav_path", "wav_filename"),
)
# Letters and digits of the name of a column of channels; others are the number of channels, such as num_channels.
CHANNEL = re.compile(
    r"(?:audio|target|speaker|source|recording)?channel(?:id|index|idx|no|num|number|nr|selector)?|channels|chan|ch"
)
ALL_CHANNELS = {
    "all",
    "average",
    "avg",
    "mean",
    "mix",
    "mixed",
    "both",
    "mono",
    "stereo",
}  # values that name no channel
UNITS = {"": 1.0, "s": 1.0, "ms": 0.001}  # seconds of each unit that is read
MILLISECONDS = ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds")
SECONDS = ("s", "sec", "secs", "second", "seconds", "ssmsec")  # the last is a unit of ELAN: seconds with a fraction
OTHER_UNITS = r"samples?|frames?|index|idx|us|ns|cs|(?:h?hmmss|mmss)(?:ms)?|hms"
# Letters and digits of the name of a column of times: what starts or ends, the start or end, and the unit.
TIME = re.compile(
    r"(?P<of>segment|seg|utterance|utt|sentence|turn|audio|wav|clip|speech|vad|chunk|word|time|offset|frame|sample|t)?"
    r"(?:(?P<start>start|begin|beg|onset|from|tmin|xmin|t0)|(?P<offset>offset)|"
    r"(?P<end>end|stop|finish|until|to|tmax|xmax|t1)|(?P<duration>duration|dur|length|len))"
    r"(?:time|timestamp|position|pos|point|at|offset)?(?:in)?"
    rf"(?P<unit>{'|'.join((*SECONDS, *MILLISECONDS))}|{OTHER_UNITS})?"
)
UNCLEAR = {"from", "to", "until", "t0", "t1", "length", "len"}  # without a unit, they may be times, or others
# Names of columns that have a start and an end in one value; their other values are dates, names or numbers.
SPAN = re.compile(
    r"(?:audio|speech|segment|seg|utterance|utt|clip)?(?:times?|timestamps?|span|interval|segment|region)"
)
# Values of a column whose name TIME matches; other values, such as dates and names, are no times.
TIME_VALUE = re.compile(r"\d+(:\d+)*([.,]\d+)?([eE][+-]?\d+)?s?")
SPAN_VALUE = re.compile(r"[\[({]?\s*\d[\d:]*[.:]\d+s?\s*(?:[,;-]|-->|\s)\s*\d[\d:]*[.:]\d+s?\s*[\])}]?|\[\d+, \d+\]")
STARTS, ENDS = {"start", "begin", "beg", "onset"}, {"end", "stop", "finish"}  # words in names of pairs of columns
# Words of pairs of columns that are not of times.
NOT_OF_TIMES = {"char", "chars", "character", "characters", "text", "token", "tokens", "page", "line", "year", "date"}


class TimeColumn(NamedTuple):
    """A column of times.

    Args:
        name: name of the column.
        unit: seconds of a unit; None: the unit is not read.
    """

    name: str
    unit: float | None


class Columns(NamedTuple):
    """The column for each purpose; None: there is no such column.

    Args:
        text: column of the texts.
        speaker: column of the speakers.
        id: column of the ids.
        channel: column of the channels to which the texts belong.
        start: column of the starts of segments.
        duration: column of the durations of segments, which is read where a row has no end.
        end: column of the ends of segments.
        unread: columns of times that cannot be read.
    """

    text: str
    speaker: str | None
    id: str | None
    channel: str | None
    start: TimeColumn | None
    duration: TimeColumn | None
    end: TimeColumn | None
    unread: tuple[str, ...]

    def purposes(self) -> dict[str, str | None]:
        """Return the columns that are read, by their purpose."""
        times = {"start": self.start, "duration": self.duration, "end": self.end}
        plain = {"text": self.text, "speaker": self.speaker, "id": self.id, "channel": self.channel}
        return plain | {purpose: None if column is None else column.name for purpose, column in times.items()}


def columns_by_purpose(names: Iterable[str], options: SourceOptions, where: str) -> Columns:
    """Choose the columns of a source that has the columns `names`; the format chooses that of the audio.

    Raises:
        InputError: there is no column of texts.
    """
    names = list(names)
    speaker, identity = (first_column(choice, names) for choice in (SPEAKER_COLUMNS, ID_COLUMNS))
    channel = next(channel_columns(names), None)
    return Columns(text_column(names, options, where), speaker, identity, channel, *_time_columns(names))


def _time_columns(
    names: Sequence[str],
) -> tuple[TimeColumn | None, TimeColumn | None, TimeColumn | None, tuple[str, ...]]:
    """Return the columns of starts, durations and ends, and those of times that are not read."""
    found: dict[str, list[TimeColumn]] = {"start": [], "offset": [], "end": [], "duration": []}
    has_onset = False
    for name in names:
        if match := TIME.fullmatch(_letters(name)):
            unit = "s" if match["unit"] in SECONDS else "ms" if match["unit"] in MILLISECONDS else match["unit"] or ""
            is_named = unit or not {match["start"], match["end"], match["duration"]} & UNCLEAR
            is_clear = is_named and match["of"] not in ("frame", "sample")
            seconds = UNITS.get(unit) if is_clear else None
            kind = next(kind for kind in found if match[kind])
            found[kind].append(TimeColumn(name, seconds))
            has_onset |= match["start"] == "onset"
    # The offset is the end beside an onset, and the start if there is no other one.
    offsets = found.pop("offset")
    if has_onset or not found["start"]:
        found["end" if has_onset else "start"] += offsets
        offsets = []
    chosen = {
        kind: next((column for column in columns if column.unit is not None), None) for kind, columns in found.items()
    }
    start, duration, end = (chosen[kind] for kind in ("start", "duration", "end"))
    unread = [column for kind in ("start", "end") if chosen[kind] is None for column in found[kind]]
    if start is None and end is not None:
        unread.append(end)
    if start is not None and duration is None and end is None:
        unread += [*found["duration"], *offsets]
    others = () if start else (*_pairs(names), *(name for name in names if SPAN.fullmatch(_letters(name))))
    times = (None, None, None) if start is None else (start, duration, end)
    return *times, (*(column.name for column in unread), *others)


def _pairs(names: Iterable[str]) -> Iterator[str]:
    """Yield columns that TIME excludes and whose names differ in start and end alone, such as x_start and x_end."""
    pairs: dict[tuple[str | None, ...], dict[bool, str]] = {}  # by their other words; by whether it is the start
    for name in names:
        words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
        kinds = {*words} & (STARTS | ENDS)
        if len(kinds) == 1 and not {*words} & NOT_OF_TIMES and not TIME.fullmatch(_letters(name)):
            others = tuple(None if word in kinds else word for word in words)
            pairs.setdefault(others, {})[kinds <= STARTS] = name
    for pair in pairs.values():
        if len(pair) == 2:
            yield from pair.values()


@lru_cache(maxsize=1024)
def _letters(name: str) -> str:
    """Return the letters and digits of a column's name."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def row_entry(
    row: Mapping[str, Any], columns: Columns, where: str, audio: Path, name: str, report: SourceReport
) -> SourceEntry | None:
    """Return the entry of a row, or None after adding a problem.

    Args:
        row: value of each column.
        columns: the columns that are read.
        where: place in the source, file:line.
        audio: path of the audio file.
        name: name of the audio in its source.
        report: for problems.

    Raises:
        InputError: a column says which part of a recording the text belongs to, and cannot be read.
    """
    check_times(row, columns.unread, where)
    text = row[columns.text]
    try:
        start, duration, end = (_seconds(row, column) for column in (columns.start, columns.duration, columns.end))
        if start is None and end is not None:
            raise ValueError(f"a segment must have a start; {columns.start.name if columns.start else 'it'} is empty")
    except ValueError as error:
        report.add(where, str(error))
        return None
    if start is None:
        duration = None
    elif end is not None:
        duration = round(end - start, 6)
    return SourceEntry(
        where,
        audio,
        text,
        name if start is None else f"{name}@{start:g}",
        id=value_of(row, columns.id),
        speaker=value_of(row, columns.speaker),
        offset=start,
        duration=duration,
        channels=channels_of(row),
    )


def check_times(row: Mapping[str, Any], columns: Iterable[str], where: str) -> None:
    """Refuse a row that has a time in one of the columns, which are not read.

    Raises:
        InputError: it has.
    """
    for column in columns:
        value = row.get(column)
        times = SPAN_VALUE if SPAN.fullmatch(_letters(column)) else TIME_VALUE
        if not isinstance(value, bool) and times.fullmatch(str("" if value is None else value).strip()):
            must = f"{where}: a segment of a recording must be a start with an end or a duration, in seconds"
            cure = "Convert or rename the columns; remove them if each text is that of a whole file"
            raise InputError(f"{must}; got {column} {shown(value)}. {cure}.")


def unread_times(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the columns, which are not read, that may say which part of a recording a text belongs to."""
    start, _, end, unread = _time_columns(list(names))
    return (*unread, *(column.name for column in (start, end) if column is not None))


def channel_columns(names: Iterable[str]) -> Iterator[str]:
    """Yield the columns of channels."""
    return (name for name in names if CHANNEL.fullmatch(_letters(name)))


def channels_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the channels that a row names, by any names; () if it names none, such as NeMo's "average".

    A single number in a column `channels` is the number of channels.
    """
    for column in channel_columns(row):
        value = row[column]
        values = value if isinstance(value, (list, tuple)) else re.split(r"[,;]", str(value).strip("[]() "))
        is_count = _letters(column).endswith("channels") and re.fullmatch(r"\d+(\.0*)?", str(value).strip())
        names = [str(each).strip() for each in values if each is not None and not is_count]
        if channels := tuple(name for name in names if known(name) and name.casefold() not in ALL_CHANNELS):
            return channels
    return ()


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
    """Return a name of a row, such as its speaker; None if there is no such column, or no name."""
    value = None if column is None else row.get(column)
    return None if value is None else known(str(value))


def _seconds(row: Mapping[str, Any], column: TimeColumn | None) -> float | None:
    """Return a number of seconds; None if there is no such column, or no value.

    Raises:
        ValueError: the value is not a number of seconds; the message is a reason for a problem.
    """
    value = None if column is None else row.get(column.name)
    if column is None or value in (None, ""):
        return None
    try:
        seconds = float(value) * (column.unit or math.nan)
    except (ValueError, TypeError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise ValueError(f"{column.name} must be a number of seconds, not negative; got {value!r}")
    return round(seconds, 9)
