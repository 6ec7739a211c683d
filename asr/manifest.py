"""Manifests: JSONL files that name stretches of audio and their text, in NeMo's keys."""

import json
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.errors import InputError

REQUIRED_KEYS = ("audio_filepath", "duration", "text")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One manifest line: a stretch of audio and its text.

    Args:
        audio_filepath: where the audio is; absolute, or relative to the working directory.
        duration: length of the stretch in seconds, > 0.
        text: what is said, as written by the corpus; may be empty.
        id: unique within a manifest; the augmentation of an utterance is a function of it.
        offset: where the stretch starts in the file, in seconds; None means that the utterance is the whole file.
        speaker: who speaks, if known.
    """

    audio_filepath: str
    duration: float
    text: str
    id: str
    offset: float | None = None
    speaker: str | None = None


def read_manifest(path: str | Path) -> list[Utterance]:
    """Read a manifest; relative audio paths are taken relative to the manifest's folder.

    A line without `id` is called after its `audio_filepath` (and `offset`) as written. Keys that are not ours are
    left alone.

    Raises:
        InputError: naming file and line, for a line that is not an utterance, a repeated id, or an empty manifest.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such manifest. Give the path of a JSONL file, one utterance a line.")
    utterances: list[Utterance] = []
    first_line: dict[str, int] = {}
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            utterance = _parse_line(line, where, path.parent)
            if utterance.id in first_line:
                earlier = first_line[utterance.id]
                raise InputError(f"{where}: ids must be unique; {utterance.id!r} stands already in line {earlier}.")
            first_line[utterance.id] = number
            utterances.append(utterance)
    if not utterances:
        raise InputError(f"{path}: a manifest must hold at least one utterance; it is empty.")
    return utterances


def write_manifest(path: str | Path, utterances: Iterable[Utterance]) -> None:
    """Write a manifest atomically: the file is there whole or not at all.

    Audio that lies below the manifest's folder is written relative to it, so that the folder can be moved.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent.resolve()
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            for utterance in utterances:
                out.write(json.dumps(_to_line(utterance, folder), ensure_ascii=False) + "\n")
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _parse_line(line: str, where: str, folder: Path) -> Utterance:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: each line must be one JSON object; {error}.") from None
    if not isinstance(entry, dict):
        raise InputError(f"{where}: each line must be one JSON object; got {type(entry).__name__}.")
    missing = [key for key in REQUIRED_KEYS if key not in entry]
    if missing:
        raise InputError(f"{where}: must have the keys {', '.join(REQUIRED_KEYS)}; missing {', '.join(missing)}.")
    for key in ("audio_filepath", "text"):
        if not isinstance(entry[key], str):
            raise InputError(f"{where}: {key} must be a string; got {entry[key]!r}.")
    audio_filepath, offset = entry["audio_filepath"], entry.get("offset")
    if "id" in entry:
        utterance_id = str(entry["id"])
    else:
        utterance_id = audio_filepath if offset is None else f"{audio_filepath}@{offset}"
    named = f"(id {utterance_id!r})"
    duration = _number(entry["duration"], f"{where}: duration", named)
    if duration <= 0:
        raise InputError(f"{where}: duration must be positive; got {entry['duration']!r} {named}.")
    if offset is not None:
        offset = _number(offset, f"{where}: offset", named)
        if offset < 0:
            raise InputError(f"{where}: offset must not be negative; got {offset!r} {named}.")
    speaker = entry.get("speaker")
    return Utterance(
        audio_filepath=os.path.join(folder, audio_filepath),
        duration=duration,
        text=entry["text"],
        id=utterance_id,
        offset=offset,
        speaker=None if speaker is None else str(speaker),
    )


def _number(value: Any, what: str, named: str) -> float:
    """A finite number of seconds, or the error that says it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{what} must be a number of seconds; got {value!r} {named}.")
    return float(value)


def _to_line(utterance: Utterance, folder: Path) -> dict[str, Any]:
    audio = Path(utterance.audio_filepath).resolve()
    if audio.is_relative_to(folder):
        audio = audio.relative_to(folder)
    line: dict[str, Any] = {"id": utterance.id, "audio_filepath": str(audio), "duration": utterance.duration}
    if utterance.offset is not None:
        line["offset"] = utterance.offset
    if utterance.speaker is not None:
        line["speaker"] = utterance.speaker
    return line | {"text": utterance.text}
