"""Kaldi data directories: wav.scp, text, and optionally segments, utt2spk and reco2file_and_channel.

A wav.scp may contain commands ("flac -dc x.flac |") and positions in archives. Both are refused: the converter runs no
programs and reads no archives. Where utt2spk names an utterance as its own speaker, the speaker is unknown.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, located
from asr.core.data.manifest import named_lines
from asr.errors import InputError

Table = dict[str, tuple[str, str]]  # maps the key of a line to the line's place (file:line) and remaining text


class KaldiSegment(NamedTuple):
    """A segment of a recording.

    Args:
        where: place in the source, file:line.
        recording: name of the recording.
        start: start in seconds; None: the segment is the whole recording.
        duration: duration in seconds; None: to the end of the recording.
        channels: channel that the line names; () if it names none.
    """

    where: str
    recording: str
    start: float | None = None
    duration: float | None = None
    channels: tuple[str, ...] = ()


def accepts(path: Path) -> bool:
    """Return whether a path is a folder with wav.scp and text."""
    return (path / "wav.scp").is_file() and (path / "text").is_file()


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read a data directory; utterances are in the order of `text`."""
    if not source.is_dir():
        raise InputError(f"{source}: must be a Kaldi data directory, with wav.scp and text; it is not a folder.")
    recordings = _table(source / "wav.scp", report)
    speakers, files = (
        _table(source / name, report) if (source / name).exists() else {}
        for name in ("utt2spk", "reco2file_and_channel")
    )
    has_segments = (source / "segments").exists()
    segments = _segments(source / "segments", report) if has_segments else {}
    used = {"audio": "wav.scp", "text": "text", "times": "segments" if has_segments else None}
    report.name_columns(used | {"speaker": "utt2spk" if speakers else None})
    root = options.root or source
    texts = _table(source / "text", report, may_be_empty=True)
    report.dropped["segment (it has no text)"] = len(segments.keys() - texts.keys())
    for name, (where, text) in texts.items():
        segment = segments.get(name) if has_segments else KaldiSegment(where, name)
        if segment is None:
            report.add(where, f"utterance {name!r} is not in segments")
            continue
        if segment.recording not in recordings:
            report.add(segment.where, f"recording {segment.recording!r} is not in wav.scp")
            continue
        scp, value = recordings[segment.recording]
        if audio := _audio(value, root, scp, report):
            _, speaker = speakers.get(name, ("", None))
            channels = segment.channels
            if not channels and segment.recording in files:  # RECORDING FILE CHANNEL
                channels = tuple(files[segment.recording][1].split()[1:])
            yield SourceEntry(
                where,
                audio,
                text,
                name,
                speaker=None if speaker == name else speaker,
                offset=segment.start,
                duration=segment.duration,
                channels=channels,
            )


def _table(path: Path, report: SourceReport, may_be_empty: bool = False) -> Table:
    """Read a file whose lines consist of a key and a value."""
    table: Table = {}
    for where, line in named_lines(path, "a file of a Kaldi data directory"):
        key, *rest = line.split(maxsplit=1)
        value = rest[0].strip() if rest else ""
        if not value and not may_be_empty:
            report.add(where, f"must be a key and a value; got {key!r} alone")
        elif key in table:
            report.add(where, f"keys must be unique; {key!r} is at {table[key][0]}")
        else:
            table[key] = where, value
    return table


def _audio(value: str, root: Path, where: str, report: SourceReport) -> Path | None:
    """Return the audio file, in any folder, that a wav.scp line names; otherwise add a problem and return None."""
    if value.endswith("|"):
        report.add(where, f"must name a file; commands are not run: {value!r}. Write its output to a file first")
        return None
    if value == "-" or value.rpartition(":")[2].isdigit():
        report.add(where, f"must name a file; got a place in a stream or an archive: {value!r}")
        return None
    return located(root, value, where, report)


def _segments(path: Path, report: SourceReport) -> dict[str, KaldiSegment]:
    segments: dict[str, KaldiSegment] = {}
    for where, line in named_lines(path, "Kaldi's segments"):
        fields = line.split()
        try:
            name, recording, *times = fields[:4]
            start, end = map(float, times)
            if len(fields) > 5:
                raise ValueError
        except ValueError:
            report.add(where, f"must be UTTERANCE RECORDING START END, and optionally CHANNEL; got {line.strip()!r}")
            continue
        if not (start >= 0 and (end > start or end == -1)):  # -1: to the end of the recording
            report.add(where, f"END must be beyond START, which is not negative; got {start:g} and {end:g}")
        elif name in segments:
            report.add(where, f"utterances must be unique; {name!r} is at {segments[name].where}")
        else:
            duration = None if end == -1 else round(end - start, 6)
            segments[name] = KaldiSegment(where, recording, start, duration, tuple(fields[4:]))
    return segments
