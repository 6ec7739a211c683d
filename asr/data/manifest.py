"""Manifests: JSONL files that name stretches of audio and their text, in NeMo's keys."""

import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from asr.errors import InputError, shown
from asr.storage.location import folder_of, is_url, join, plain, printable_url
from asr.storage.store import read_whole
from asr.system.files import bounded_lines, real, write_whole

REQUIRED_KEYS = ("audio_filepath", "duration", "text")
MAX_SECONDS = 1e9  # 30 years: more is a mistake
LONGEST_LINE = 32_000_000  # characters: NAME.utterances.jsonl takes about 100 for a word, and a day has 250,000 of them


@dataclass(frozen=True, slots=True)
class Utterance:
    """One manifest line: a stretch of audio and its text.

    Args:
        audio_filepath: where the audio is: a URL, or a path, absolute or relative to the working directory.
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
    """Read a manifest, a file or a URL; relative audio paths are taken relative to the manifest's folder.

    A line without `id` is called after its `audio_filepath` (and `offset`) as written. Keys that are not ours are
    left alone.

    Raises:
        InputError: naming file and line, for a line that is not an utterance, a repeated id, or an empty manifest.
    """
    utterances, problems = read_good_lines(path)
    if problems:
        raise problems[0]
    return utterances


def read_good_lines(
    path: str | Path, *, required: Sequence[str] = REQUIRED_KEYS
) -> tuple[list[Utterance], list[InputError]]:
    """Read what can be read of a manifest, and say what is wrong with the other lines.

    Args:
        path: or URL of the manifest.
        required: keys a line must have; without `text`, the text is empty.

    Raises:
        InputError: there is no such manifest, or no line in it.
    """
    path = plain(path)
    if not is_url(path) and not os.path.isfile(path):
        problem = "it is a folder" if os.path.isdir(path) else "no such manifest"
        raise InputError(f"{path}: {problem}. Give the path of a JSONL file, one utterance a line.")
    utterances: list[Utterance] = []
    problems: list[InputError] = []
    first_line: dict[str, str] = {}
    for where, line in named_lines(path, "a manifest"):
        try:
            utterance = parse_utterance(parse_object(line, where), where, folder_of(path), required)
            if utterance.id in first_line:
                earlier = first_line[utterance.id].rpartition(":")[2]
                raise InputError(f"{where}: ids must be unique; {utterance.id!r} stands already in line {earlier}.")
        except InputError as error:
            problems.append(error)
            continue
        first_line[utterance.id] = where
        utterances.append(utterance)
    if not utterances and not problems:
        raise InputError(f"{printable_url(path)}: a manifest must hold at least one utterance; it is empty.")
    return utterances, problems


def write_manifest(
    path: str | Path, utterances: Iterable[Utterance], scores: Iterable[float | None] = repeat(None)
) -> None:
    """Write a manifest, whole or not at all.

    Audio that lies below the manifest's folder is written relative to it, so that the folder can be moved.

    Args:
        path: of the manifest.
        utterances: its lines.
        scores: of an alignment, one for each utterance, which stand beside; None: nothing does.
    """
    path = Path(path)
    folder = real(path.parent)
    lines = (
        json.dumps(_to_line(utterance, folder) | ({} if score is None else {"score": score}), ensure_ascii=False) + "\n"
        for utterance, score in zip(utterances, scores, strict=False)
    )
    # Names of files may hold bytes that are not UTF-8; `named_lines` reads them back.
    write_whole(path, lambda file: file.writelines(line.encode("utf-8", "surrogateescape") for line in lines))


def named_lines(path: str | Path, kind: str) -> Iterator[tuple[str, str]]:
    """Read the lines that are not blank, each with its place (`file:line`), as errors name it.

    A byte order mark, as Windows writes, is no part of the first; bytes that are not UTF-8 become lone surrogates.

    Args:
        path: or URL of the file.
        kind: what it should be, for errors: "a manifest", say.

    Raises:
        InputError: it cannot be read, is not text (has a NUL), or a line is longer than LONGEST_LINE.
        StoreError: what a URL names cannot be read.
    """
    path = plain(path)
    try:
        binary = io.BytesIO(read_whole(path)) if is_url(path) else open(path, "rb")  # noqa: SIM115  closed by the text
        with io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape") as file:
            for where, line in bounded_lines(file.readline, LONGEST_LINE, printable_url(path)):
                if "\0" in line:
                    raise InputError(f"{where}: must be {kind}; it is not text. asr.transcribe takes recordings.")
                if line.strip():
                    yield where, line
    except OSError as error:
        raise InputError(f"{path}: must be {kind} that can be read; {error.strerror}.") from None


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Read a line of JSON.

    Raises:
        InputError: naming the place, for a line that is not one JSON object.
    """
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        must = f"{where}: each line must be one JSON object"
        raise InputError(f"{must}; {error.msg} at character {error.pos + 1}.") from None
    except (ValueError, RecursionError):  # more than 4300 digits
        must = f"{where}: each line must be one JSON object"
        raise InputError(f"{must}; it holds too long a number, or is nested too deep.") from None
    if not isinstance(entry, dict):
        raise InputError(f"{where}: each line must be one JSON object; got {type(entry).__name__}.")
    return entry


def parse_utterance(
    entry: dict[str, Any], where: str, folder: str | Path, required: Sequence[str] = REQUIRED_KEYS
) -> Utterance:
    """Make an utterance of what a line holds.

    Args:
        entry: its keys; others than ours are left alone.
        where: its place, for errors.
        folder: path or URL that relative audio paths are relative to.
        required: keys it must have.

    Raises:
        InputError: it is not one.
    """
    missing = [key for key in required if key not in entry]
    if missing:
        raise InputError(f"{where}: must have the keys {', '.join(required)}; missing {', '.join(missing)}.")
    if "text" not in required and entry.get("text") is None:
        entry = entry | {"text": ""}
    for key in ("audio_filepath", "text"):
        if not isinstance(entry[key], str):
            raise InputError(f"{where}: {key} must be a string; got {shown(entry[key])}.")
    audio_filepath, offset, utterance_id = entry["audio_filepath"], entry.get("offset"), entry.get("id")
    if utterance_id is None:
        written = printable_url(audio_filepath)
        utterance_id = written if offset is None else f"{written}@{offset}"
    speaker = entry.get("speaker")
    for key, value in (("id", utterance_id), ("speaker", speaker)):
        if isinstance(value, (list, dict)):
            raise InputError(f"{where}: {key} must be a string or a number; got {shown(value)}.")
    utterance_id = str(utterance_id)
    speaker = None if speaker is None else str(speaker)
    texts = {"audio_filepath": audio_filepath, "text": entry["text"], "id": utterance_id, "speaker": speaker or ""}
    for key, value in texts.items():
        check_unicode(value, f"{where}: {key}")
    named = f"(id {utterance_id!r})"
    duration = _number(entry["duration"], f"{where}: duration", named)
    if duration <= 0:
        raise InputError(f"{where}: duration must be positive; got {entry['duration']!r} {named}.")
    if offset is not None:
        offset = _number(offset, f"{where}: offset", named)
        if offset < 0:
            raise InputError(f"{where}: offset must not be negative; got {offset!r} {named}.")
    return Utterance(
        audio_filepath=join(str(folder), audio_filepath),
        duration=duration,
        text=entry["text"],
        id=utterance_id,
        offset=offset,
        speaker=speaker,
    )


def check_unicode(text: str, what: str) -> None:
    """Check that a text can be written again.

    Raises:
        InputError: it holds half of a surrogate pair.
    """
    if re.search("[\ud800-\udc7f\udd00-\udfff]", text):  # \udc80 to \udcff are bytes that are not UTF-8
        raise InputError(f"{what} must be Unicode text; it holds half a surrogate pair: {shown(text)}.")


def _number(value: Any, what: str, named: str) -> float:
    """A finite number of seconds, or the error that says it is none."""
    number = float(value) if isinstance(value, float) or (type(value) is int and abs(value) < MAX_SECONDS) else math.nan
    if not abs(number) < MAX_SECONDS:
        raise InputError(f"{what} must be a number of seconds; got {shown(value)} {named}.")
    return number


def _to_line(utterance: Utterance, folder: Path) -> dict[str, Any]:
    audio = real(Path(utterance.audio_filepath))
    if audio.is_relative_to(folder):
        audio = audio.relative_to(folder)
    line: dict[str, Any] = {"id": utterance.id, "audio_filepath": str(audio), "duration": utterance.duration}
    if utterance.offset is not None:
        line["offset"] = utterance.offset
    if utterance.speaker is not None:
        line["speaker"] = utterance.speaker
    return line | {"text": utterance.text}
