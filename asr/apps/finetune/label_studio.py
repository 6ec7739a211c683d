"""Label Studio's export with the format JSON: a list of tasks with their annotations.

*Source*: https://labelstud.io/guide/task_format and https://labelstud.io/guide/export. These keys are read:

    task        id, data (`audio`, or another name of AUDIO_COLUMNS), annotations, predictions (only counted)
    annotation  completed_by (a number, or a mapping with id and email), was_cancelled, ground_truth, updated_at,
                created_at, result
    result      id (that of its region), parentID, type, from_name, value: text of `textarea` (a string, or a list that
                is joined with spaces), start, end (seconds) and channel, which any result of a region may have

A result of type `textarea` is a transcript: of a region if a result with its id, or with that of its parent, has start
and end, otherwise of the whole file. A result needs neither id nor value: scripts that import annotations leave ids
out, relations have no value.
Other results and regions without a text are counted; all other keys are not read (`meta.text` neither).

Cancelled annotations, annotations without a text, and predictions are dropped and counted. If an annotation is a ground
truth, the others are not used. Annotations whose texts differ are a problem, unless `annotator` or `newest` decides.
Label Studio writes channel 0 also for mono regions: only if a region has another one, texts belong to channels.
"""

import os
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from asr.apps.finetune.columns import audio_column
from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, below, located
from asr.apps.finetune.rows import first_object, is_json_list, json_list
from asr.base.storage.location import HTTP
from asr.errors import InputError, shown

UPLOADED, LOCAL = "/data/upload/", "/data/local-files"
KEYS = {"data", "annotations", "annotator", "annotation_id"}  # of a task, or of an object of JSON-MIN
UPLOAD = re.compile(r"[0-9a-f]{8}-")  # begins the names that Label Studio gives to uploads
EXPORT = "Export from Label Studio with the format JSON"


class StudioRegion(NamedTuple):
    """A part of a recording in an annotation.

    Args:
        id: id of the region in its annotation; None: the whole recording.
        text: transcript; "" if the annotator gave none.
        start: start in seconds; None: the whole recording.
        duration: duration in seconds; None: the whole recording.
        channel: number of the channel of a region, from 0.
    """

    id: str | None
    text: str
    start: float | None
    duration: float | None
    channel: int


class StudioAnnotation(NamedTuple):
    """An annotation of a task, with a text.

    Args:
        annotator: names of the annotator: the id, and the e-mail address if there is one.
        is_truth: whether the annotation is a ground truth.
        time: time of the last change; None: unknown.
        regions: the regions, in the order of their starts.
    """

    annotator: tuple[str, ...]
    is_truth: bool
    time: datetime | None
    regions: list[StudioRegion]

    @property
    def texts(self) -> list[str]:
        """The texts that are not empty, in the order of their starts."""
        return [region.text for region in self.regions if region.text]


def accepts(path: Path) -> bool:
    """Return whether a file is a .json with a list of tasks, or a folder has one such file."""
    return _export(path) is not None


def _export(path: Path) -> Path | None:
    """Return an export, or the only export of a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    lists = [file for file in files if file.suffix.lower() == ".json" and is_json_list(file)]
    keys = {file: first_object(file).keys() for file in lists}
    exports = [file for file in lists if keys[file] & KEYS or (file == path and not keys[file])]
    return exports[0] if len(exports) == 1 else None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read an export, or the only export of a folder; audio is looked for below `options.root`, or beside the export.

    Of a path /data/upload/1/0a1b2c3d-x.wav, 1/0a1b2c3d-x.wav, 0a1b2c3d-x.wav and x.wav are looked for; of
    /data/local-files/?d=a/x.wav, a/x.wav; also of such paths after the address of a server.
    """
    source = _export(source) or source
    tasks = _tasks(source)
    names = _field_names(tasks)
    field = _field(names, options.field, source)
    key = audio_column(tasks[0]["data"], options, f"{source}: data of the first task")
    report.name_columns({"audio": key, "text": field}, [*tasks[0]["data"], *names])
    for number, task in enumerate(tasks, 1):
        name = str(task.get("id", number) if isinstance(task, dict) else number)
        where = f"{source}: task {name}"
        try:
            annotation = _chosen(_annotations(task, field, report), options, where, report)
            audio = _audio(task["data"][key], options.root or source.parent, where, report) if annotation else None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            report.add(where, f"must have Label Studio's keys; {type(error).__name__}: {error}")
            continue
        if annotation and audio:
            yield from _entries(annotation, audio, name, where, report)


def _tasks(source: Path) -> list[dict[str, Any]]:
    try:
        tasks = json_list(source, "an export of Label Studio")
    except InputError as error:
        raise InputError(f"{error} {EXPORT}.") from None
    if not tasks or not isinstance(tasks[0], dict):
        raise InputError(f"{source}: must be a list of tasks; got {shown(tasks)}. {EXPORT}.")
    if not isinstance(tasks[0].get("data"), dict) or not isinstance(tasks[0].get("annotations"), list):
        kind = "JSON-MIN" if "annotator" in tasks[0] else f"a list with {', '.join(tasks[0]) or 'no keys'}"
        raise InputError(f"{source}: must be tasks with data and annotations; got {kind}. {EXPORT}.")
    return tasks


def _field_names(tasks: Sequence[Any]) -> list[str]:
    """Return the names of the fields in which annotators wrote texts."""
    annotations = [annotation for task in tasks for annotation in _list(task, "annotations")]
    results = [
        result
        for annotation in annotations
        for result in _list(annotation, "result")
        if _is_text(result) and not annotation.get("was_cancelled")
    ]
    return [*dict.fromkeys(str(result.get("from_name")) for result in results)]


def _list(parent: Any, key: str) -> list[Any]:
    """Return the list under a key, or [] if the parent has none: `_annotations` names such tasks."""
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, list) else []


def _field(names: list[str], field: str | None, source: Path) -> str | None:
    """Return the name of the field of the texts; None if there is no text."""
    if field is not None and field not in names:
        raise InputError(f"{source}: --field must be one of {', '.join(names) or 'no fields'}; got {shown(field)}.")
    if field is None and len(names) > 1:
        cure = " or ".join(f"--field {name}" for name in names)
        raise InputError(f"{source}: texts must be in one field; they are in {' and '.join(names)}. Give {cure}.")
    return field or next(iter(names), None)


def _is_text(result: Any) -> bool:
    return isinstance(result, dict) and result.get("type") == "textarea"


def _annotations(task: Mapping[str, Any], field: str | None, report: SourceReport) -> list[StudioAnnotation]:
    """Return the annotations of a task that have texts; count what is dropped."""
    report.dropped["prediction"] += len(task.get("predictions") or ())
    report.dropped["unannotated task"] += not task["annotations"]
    annotations = []
    for annotation in task["annotations"]:
        by, changed = annotation.get("completed_by"), annotation.get("updated_at") or annotation.get("created_at")
        names = (by.get("id"), by.get("email")) if isinstance(by, dict) else (by,)
        time = None if changed is None else datetime.fromisoformat(changed)
        parsed = StudioAnnotation(
            tuple(str(name) for name in names if name is not None),
            bool(annotation.get("ground_truth")),
            time if time is None or time.tzinfo else time.replace(tzinfo=UTC),
            _regions(annotation["result"], field),
        )
        report.dropped.update(_kind_of_unread(result) for result in annotation["result"])
        del report.dropped[""]
        if annotation.get("was_cancelled"):
            report.dropped["cancelled annotation"] += 1
        elif not parsed.texts:
            report.dropped["empty annotation"] += 1
        else:
            annotations.append(parsed)
    return annotations


def _value(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value of a result; {} if it has none, such as a relation."""
    value = result.get("value")
    return value if isinstance(value, dict) else {}


def _kind_of_unread(result: Mapping[str, Any]) -> str:
    """Return the noun of a result that is neither a text nor a place; "" for others."""
    if _is_text(result) or _value(result).keys() & {"start", "end"}:
        return ""
    return str(result.get("type") or "result without a type")


def _region_id(result: Mapping[str, Any]) -> str | None:
    """Return the id of the region of a result: its times if it has no id; None if it has neither."""
    place = _value(result)
    times = f"{place['start']}-{place['end']}" if {"start", "end"} <= place.keys() else None
    return times if result.get("id") is None else str(result["id"])


def _regions(results: Sequence[Mapping[str, Any]], field: str | None) -> list[StudioRegion]:
    """Return the regions of an annotation, with or without a text, and the text of the whole recording."""
    for result in results:
        if len(_value(result).keys() & {"start", "end"}) == 1:
            raise ValueError("a region must have start and end; it has only one of them")
    places = {_region_id(result): _value(result) for result in results if "end" in _value(result)}
    texts: dict[str | None, list[str]] = {region: [] for region in places}
    for result in results:
        if _is_text(result) and result.get("from_name") == field:
            text = result["value"]["text"] or []
            region = next((id for id in (_region_id(result), result.get("parentID")) if id in places), None)
            texts.setdefault(region, []).extend([text] if isinstance(text, str) else text)
    if any(texts.get(None, ())) and any(texts[region] for region in places):
        raise ValueError("texts must be of the whole file or of regions; this annotation has both")
    regions = []
    for region, parts in texts.items():
        text = " ".join(" ".join(parts).split())
        if region is None:
            regions.append(StudioRegion(None, text, None, None, 0))
        else:
            place = places[region]
            start, end = float(place["start"]), float(place["end"])
            regions.append(StudioRegion(region, text, start, round(end - start, 6), place.get("channel") or 0))
    return sorted(regions, key=lambda region: region.start or 0.0)


def _chosen(
    annotations: list[StudioAnnotation], options: SourceOptions, where: str, report: SourceReport
) -> StudioAnnotation | None:
    """Return the annotation to use; if the texts differ and no option decides, add a problem and return None."""
    remaining = [annotation for annotation in annotations if annotation.is_truth] or annotations
    if _differ(remaining) and options.annotator is not None:
        remaining = [item for item in remaining if options.annotator in item.annotator] or remaining
    times = [annotation.time for annotation in remaining if annotation.time is not None]
    if _differ(remaining) and options.newest and len(times) == len(remaining):
        remaining = [annotation for annotation in remaining if annotation.time == max(times)]
    if _differ(remaining):
        texts = "; ".join(f"{(*item.annotator, 'unknown')[0]}: {shown(' '.join(item.texts))}" for item in remaining)
        report.add(where, f"annotators must agree; got {texts}. Give --annotator ID or --newest, or correct the task")
        return None
    report.dropped["other annotation"] += max(0, len(annotations) - 1)
    return remaining[0] if remaining else None


def _differ(annotations: Sequence[StudioAnnotation]) -> bool:
    return any(annotation.texts != annotations[0].texts for annotation in annotations)


def _audio(value: str, root: Path, where: str, report: SourceReport) -> Path | None:
    """Return the audio file of a task; for a name that is not supported, add a problem and return None."""
    url = urlsplit(value)
    if url.scheme not in ("", *HTTP):
        return located(root, value, where, report)
    if "fileuri" in parse_qs(url.query):  # /tasks/7/presign/?fileuri=, or resolve
        stored = b64decode(parse_qs(url.query)["fileuri"][0] + "==", validate=False).decode("utf-8", "replace")
        must = f"audio must be a file; got a link of Label Studio to {shown(stored)}"
        report.add(where, f"{must}. Fetch the file, and name the copy")
        return None
    if LOCAL in url.path:
        names = [parse_qs(url.query)["d"][0]]
    elif UPLOADED in url.path:
        name = unquote(url.path.partition(UPLOADED)[2])
        file = Path(name).name
        names = [name, file, UPLOAD.sub("", file, count=1)]
    else:
        path = located(root, value, where, report)
        original = path and path.with_name(UPLOAD.sub("", path.name, count=1))
        return original if original and not os.path.isfile(path or "") and os.path.isfile(original) else path
    paths = [below(root, name, where, report) for name in names[:1]]
    if None in paths:
        return None
    paths += [root / name for name in names[1:]]
    present = next((path for path in paths if path and os.path.isfile(path)), None)
    return located(root, value, where, report) if present is None and url.scheme else present or paths[0]


def _entries(
    annotation: StudioAnnotation, audio: Path, task: str, where: str, report: SourceReport
) -> Iterator[SourceEntry]:
    """Yield the regions that have a text, and count the others."""
    has_channels = any(region.channel for region in annotation.regions)
    for region in annotation.regions:
        if not region.text:
            report.dropped["untranscribed region"] += 1
            continue
        name = task if region.id is None else f"{task}-{region.id}"
        channels = (region.channel,) if has_channels else ()
        yield SourceEntry(
            where, audio, region.text, name, offset=region.start, duration=region.duration, channels=channels
        )
