"""lhotse's manifests: cuts, or supervisions with their recordings, as JSON lines or a JSON list, also in a .gz."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, located
from asr.apps.finetune.rows import first_object, json_objects
from asr.core.data.manifest import known
from asr.errors import InputError

KIND = "a manifest of lhotse"
READ = ("id", "type", "recording", "recording_id", "supervisions", "start", "duration", "channel", "text", "speaker")
PLAIN = ("MonoCut", "MultiCut", None)  # lhotse mixes or pads cuts of other types when it loads them
SUPERVISION_TOLERANCE_SECONDS = 0.002  # as in lhotse's validate_for_asr


def accepts(path: Path) -> bool:
    """Return whether the first line of a file is a cut or a supervision."""
    row = first_object(path)
    return (_is_cut(row) or "recording_id" in row) and "audio_filepath" not in row


def _is_cut(row: Mapping[str, Any]) -> bool:
    return "supervisions" in row or str(row.get("type")).endswith("Cut")  # a MixedCut has tracks instead


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read cuts, or supervisions with `options.recordings`; a cut's text is the joined text of its supervisions."""
    root = options.root or source.parent
    recordings = {}
    if options.recordings is not None:
        for where, row in json_objects(options.recordings, KIND, report):
            if not isinstance(row.get("id"), str):
                report.add(where, f"id must be a string; got {row.get('id')!r}")
                continue
            recordings[row["id"]] = (where, row)
    for where, row in json_objects(source, KIND, report):
        try:
            if _is_cut(row):
                entry = _cut(row, where, root, report)
            elif "recording_id" in row:
                entry = _supervision(row, where, root, recordings, report)
            else:
                raise InputError("must be a cut or a supervision; it has neither supervisions nor recording_id")
            for part in (row, *row.get("supervisions", ())):
                report.ignored |= dict.fromkeys(key for key in part if key not in READ)
            if entry is not None:
                yield entry
        except InputError as error:
            report.add(where, str(error))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            report.add(where, f"must have lhotse's keys; {type(error).__name__}: {error}")


def _cut(row: Mapping[str, Any], where: str, root: Path, report: SourceReport) -> SourceEntry | None:
    if row.get("type") not in PLAIN:
        raise InputError(f"must be a plain cut; got {row['type']}. Write its audio first: CutSet.save_audios")
    speakers = {known(str(part["speaker"])) for part in row["supervisions"] if part.get("speaker")}
    speaker = speakers.pop() if len(speakers) == 1 else None
    return _entry(where, row["recording"], root, _joined_text(row), row, speaker, report)


def _supervision(
    row: Mapping[str, Any], where: str, root: Path, recordings: Mapping[Any, Any], report: SourceReport
) -> SourceEntry | None:
    if row["recording_id"] not in recordings:
        raise InputError(f"recording {row['recording_id']!r} is not known. Give --recordings recordings.jsonl.gz")
    recording = recordings[row["recording_id"]][1]
    return _entry(where, recording, root, row.get("text") or "", row, row.get("speaker"), report)


def _entry(
    where: str,
    recording: Mapping[str, Any],
    root: Path,
    text: str,
    row: Mapping[str, Any],
    speaker: str | None,
    report: SourceReport,
) -> SourceEntry | None:
    """Return an entry for a cut or supervision; its offset is None if it is the whole recording.

    After adding a problem with the name of the audio, return None.
    """
    if recording.get("transforms"):
        raise InputError("audio must not have transforms, which lhotse applies on loading; this recording has some")
    sources = recording["sources"]
    if len(sources) != 1 or sources[0].get("type") != "file":
        kinds = ", ".join(str(source.get("type")) for source in sources)
        raise InputError(f"a recording must be one file; got {kinds or 'none'}. Commands and URLs are not supported")
    start, duration = float(row["start"]), float(row["duration"])
    whole = start == 0 and abs(duration - float(recording["duration"])) < 1e-3
    audio, offset = located(root, sources[0]["source"], where, report), None if whole else start
    if audio is None:
        return None
    name, channels = row["id"], _text_channels(row)
    return SourceEntry(where, audio, text, name, speaker=speaker, offset=offset, duration=duration, channels=channels)


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
