"""lhotse's manifests, which are JSONL with or without gzip: cuts, or supervisions with their recordings."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport
from asr.apps.finetune.rows import first_object
from asr.base.system.files import bounded_lines
from asr.core.data.manifest import MAX_LINE_LENGTH, named_lines, parse_object
from asr.errors import InputError

PLAIN = ("MonoCut", "MultiCut", None)  # lhotse mixes or pads cuts of other types when it loads them
SUPERVISION_TOLERANCE_SECONDS = 0.002  # as in lhotse's validate_for_asr


def accepts(path: Path) -> bool:
    """Return whether the first line of a file is a cut or a supervision."""
    keys = first_object(path).keys()
    return ("supervisions" in keys or "recording_id" in keys) and "audio_filepath" not in keys


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read cuts, or supervisions with `options.recordings`; a cut's text is the joined text of its supervisions."""
    root = options.root or source.parent
    recordings = {}
    if options.recordings is not None:
        for where, row in _rows(options.recordings, report):
            if not isinstance(row.get("id"), str):
                report.add(where, f"id must be a string; got {row.get('id')!r}")
                continue
            recordings[row["id"]] = (where, row)
    for where, row in _rows(source, report):
        try:
            if "supervisions" in row:
                yield _cut(row, where, root)
            elif "recording_id" in row:
                yield _supervision(row, where, root, recordings)
            else:
                raise InputError("must be a cut or a supervision; it has neither supervisions nor recording_id")
        except InputError as error:
            report.add(where, str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            report.add(where, f"must have lhotse's keys; {type(error).__name__}: {error}")


def _cut(row: Mapping[str, Any], where: str, root: Path) -> SourceEntry:
    if row.get("type") not in PLAIN:
        raise InputError(f"must be a plain cut; got {row['type']}. Write its audio first: CutSet.save_audios")
    speakers = {supervision["speaker"] for supervision in row["supervisions"] if supervision.get("speaker")}
    speaker = speakers.pop() if len(speakers) == 1 else None
    return _entry(where, row["recording"], root, _joined_text(row), row, speaker)


def _supervision(row: Mapping[str, Any], where: str, root: Path, recordings: Mapping[Any, Any]) -> SourceEntry:
    if row["recording_id"] not in recordings:
        raise InputError(f"recording {row['recording_id']!r} is not known. Give --recordings recordings.jsonl.gz")
    recording = recordings[row["recording_id"]][1]
    return _entry(where, recording, root, row.get("text") or "", row, row.get("speaker"))


def _entry(
    where: str,
    recording: Mapping[str, Any],
    root: Path,
    text: str,
    row: Mapping[str, Any],
    speaker: str | None,
) -> SourceEntry:
    """Return an entry for a cut or supervision; its offset is None if it is the whole recording."""
    if recording.get("transforms"):
        raise InputError("audio must not have transforms, which lhotse applies on loading; this recording has some")
    sources = recording["sources"]
    if len(sources) != 1 or sources[0].get("type") != "file":
        kinds = ", ".join(str(source.get("type")) for source in sources)
        raise InputError(f"a recording must be one file; got {kinds or 'none'}. Commands and URLs are not supported")
    start, duration = float(row["start"]), float(row["duration"])
    whole = start == 0 and abs(duration - float(recording["duration"])) < 1e-3
    audio, offset = root / sources[0]["source"], None if whole else start
    return SourceEntry(where, audio, text, row["id"], speaker, offset, duration, channels=_text_channels(row))


def _joined_text(cut: Mapping[str, Any]) -> str:
    """Join the texts of a cut's supervisions in the order of their starts."""
    texts = []
    for part in sorted(cut["supervisions"], key=lambda part: float(part["start"])):
        if not (text := (part.get("text") or "").strip()):
            continue
        start, duration = float(part["start"]), float(part["duration"])
        if min(start, float(cut["duration"]) - start - duration) < -SUPERVISION_TOLERANCE_SECONDS:
            span = f"from {start:g} to {start + duration:g} s of a cut of {float(cut['duration']):g} s"
            cure = "Cut at supervisions: CutSet.trim_to_supervisions"
            raise InputError(f"a supervision with a text must lie within its cut; it is {span}. {cure}")
        texts.append(text)
    return " ".join(texts)


def _text_channels(cut: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the channels to which the text of a cut, or of one of its supervisions, belongs; () if none are named."""
    texts = [part for part in cut.get("supervisions", ()) if part.get("text")]
    return min((channels for part in (cut, *texts) if (channels := _channels_of(part))), key=len, default=())


def _channels_of(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the channels of a cut or a supervision; () if it names none."""
    channel = part.get("channel")
    return tuple(channel) if isinstance(channel, list) else () if channel is None else (channel,)


def _rows(path: Path, report: SourceReport) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, line in _lines(path):
        try:
            yield where, parse_object(line, where)
        except InputError as error:
            report.problems.append(str(error))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix != ".gz":
        yield from named_lines(path, "a manifest of lhotse")
        return
    where = str(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape") as file:
            for where, line in bounded_lines(file.readline, MAX_LINE_LENGTH, str(path)):
                if line.strip():
                    yield where, line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: must be a complete and readable gzip file; {reason}.") from None
