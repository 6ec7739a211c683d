"""Manifests: JSONL files of segments of audio and their texts, with NeMo's keys."""

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from asr.base.storage.location import folder_of, is_url, join, plain, printable_url
from asr.base.storage.store import read_whole
from asr.base.system.files import bounded_lines, real, write_whole
from asr.base.text.printable import printable
from asr.errors import InputError, shown

REQUIRED_KEYS = ("audio_filepath", "duration", "text")
HOTWORDS = "hotwords"  # the key, and the label, of the phrases that a search prefers in an utterance
# Letters and digits of the names that corpora give to what they do not know, with or without the word speaker.
UNKNOWN = re.compile(
    r"(?:speaker|spk)?(?:na|nan|nat|none|null|nil|unk|unknown|undefined|unspecified|unidentified|anon|anonymous|missing|"
    r"not(?:known|available|applicable|specified|provided|given))(?:speaker|spk)?|nospeaker|nospk|"
)
NULL = r"\N"  # MySQL's null
UTF_16_MARKS = ("\udcff\udcfe", "\udcfe\udcff")  # byte order marks, read as UTF-8 with surrogate escapes
REPEATED_IDS = "If the key id does not name utterances, remove it: the path and the offset are then the id"
MAX_SECONDS = 1e9  # 30 years; a larger value is an error
MAX_LINE_LENGTH = 32_000_000  # a day of speech: 250,000 words; NAME.utterances.jsonl has about 100 characters per word


class Extent(NamedTuple):
    """Bytes `start` to `start + num_bytes` of a file; if `version` is not None, reads accept only this version."""

    start: int
    num_bytes: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Utterance:
    """One manifest line: a segment of audio and its text.

    Args:
        audio_filepath: URL of the audio, or path, absolute or relative to the working directory.
        duration: duration of the segment in seconds, > 0.
        text: transcript as written in the corpus; may be empty.
        id: unique within a manifest; the random augmentation of an utterance depends on its id.
        offset: start of the segment in the file, in seconds; None: the utterance is the whole file.
        speaker: name or number of the speaker, if known.
        labels: values of further keys of the line that the reader names, such as `language`, by key; a line need not
            have them.
        extent: the byte range of the utterance's audio in the shard `audio_filepath`; `offset` is then the segment's
            start in the original recording, and is not used for reading. None: `audio_filepath` is an audio file.
        content: bytes of the audio file or of the extent, if they have been read.
        manifest: name of the manifest; losses and errors are summed per manifest. It is not a key of the line.
    """

    audio_filepath: str
    duration: float
    text: str
    id: str
    offset: float | None = None
    speaker: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    extent: Extent | None = None
    content: bytes | None = field(default=None, repr=False)
    manifest: str = field(default="", repr=False, compare=False)


def read_manifest(path: str | Path, labels: Sequence[str] = ()) -> list[Utterance]:
    """Read a manifest from a file or URL; relative audio paths are relative to the manifest's folder.

    The id of a line without `id` is its `audio_filepath` (and `offset`) as written. Other keys than those in `labels`
    are ignored.
    """
    utterances, problems = read_good_lines(path, labels=labels)
    if problems:
        raise problems[0]
    return utterances


def read_good_lines(
    path: str | Path, *, required: Sequence[str] = REQUIRED_KEYS, labels: Sequence[str] = ()
) -> tuple[list[Utterance], list[InputError]]:
    """Return the utterances of the valid lines of a manifest, and the errors of the invalid lines.

    Args:
        path: path or URL of the manifest.
        required: keys that a line must have; an absent `text` is empty.
        labels: keys that are read as labels.

    Raises:
        InputError: the manifest does not exist or is empty.
    """
    path = plain(path)
    utterances: list[Utterance] = []
    problems: list[InputError] = []
    first_line: dict[str, str] = {}
    for where, line in manifest_lines(path):
        try:
            utterance = parse_utterance(parse_object(line, where), where, folder_of(path), required, labels)
            if utterance.id in first_line:
                earlier = first_line[utterance.id].rpartition(":")[2]
                must = f"{where}: ids must be unique; {utterance.id!r} is already in line {earlier}"
                raise InputError(f"{must}. {REPEATED_IDS}.")
        except InputError as error:
            problems.append(error)
            continue
        first_line[utterance.id] = where
        utterances.append(utterance)
    return utterances, problems


def manifest_lines(path: str, content: bytes | None = None) -> Iterator[tuple[str, str]]:
    """Yield `file:line` and text of each non-blank line of a manifest.

    Args:
        path: path or URL of the manifest.
        content: content of the URL, if it was fetched already.

    Raises:
        InputError: the manifest does not exist, is unreadable, or is empty.
        StoreError: a URL cannot be read.
    """
    name = printable(printable_url(path))
    if not is_url(path) and not os.path.isfile(path):
        problem = "it is a folder" if os.path.isdir(path) else "no such manifest"
        raise InputError(f"{name}: {problem}. Give the path of a JSONL file with one utterance per line.")
    empty = True
    for where, line in named_lines(path, "a manifest", content):
        empty = False
        yield where, line
    if empty:
        raise InputError(f"{name}: a manifest must have at least one utterance; it is empty.")


def write_manifest(
    path: str | Path, utterances: Iterable[Utterance], scores: Iterable[float | None] = repeat(None)
) -> None:
    """Write a manifest atomically.

    Audio paths inside of the manifest's folder are written relative to the folder, so that it can be moved.

    Args:
        path: path of the manifest.
        utterances: lines of the manifest.
        scores: alignment score of each utterance, written under the key `score`; None: the line has no such key.
    """
    path = Path(path)
    folder = real(path.parent)
    lines = (
        json.dumps(_to_line(utterance, folder) | ({} if score is None else {"score": score}), ensure_ascii=False) + "\n"
        for utterance, score in zip(utterances, scores, strict=False)
    )
    # Names of files may contain bytes that are not UTF-8; `named_lines` reads such bytes back.
    write_whole(path, lambda file: file.writelines(line.encode("utf-8", "surrogateescape") for line in lines))


def named_lines(path: str | Path, kind: str, content: bytes | None = None) -> Iterator[tuple[str, str]]:
    """Yield `file:line` (for errors) and text of each non-blank line of a file.

    A byte order mark at the start is removed; bytes that are not UTF-8 become surrogate escapes.

    Args:
        path: path or URL of the file.
        kind: expected kind of file, for errors, such as "a manifest".
        content: content of the URL, if it was fetched already.

    Raises:
        InputError: the file is unreadable, is not text in UTF-8 (has a NUL), or has a line longer than MAX_LINE_LENGTH.
        StoreError: a URL cannot be read.
    """
    path = plain(path)
    name = printable(printable_url(path))
    try:
        if content is None and is_url(path):
            content = read_whole(path)
        binary = open(path, "rb") if content is None else io.BytesIO(content)  # noqa: SIM115  closed by the text
        with io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape") as file:
            for where, line in bounded_lines(file.readline, MAX_LINE_LENGTH, name):
                if "\0" in line:
                    cure = "For recordings, use asr.transcribe"
                    if any(mark in line for mark in UTF_16_MARKS) or abs(2 * line.count("\0") - len(line)) <= 2:
                        cure = "Is it UTF-16, such as Excel's Unicode text? Save it as UTF-8"
                    raise InputError(f"{where}: must be {kind} in UTF-8; it is not text in UTF-8. {cure}.")
                if line.strip():
                    yield where, line
    except OSError as error:
        raise InputError(f"{name}: must be {kind} that is readable; got: {error.strerror}.") from None


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Parse a line of JSON.

    Raises:
        InputError: the line is not one JSON object; the message names file and line.
    """
    try:
        entry = orjson.loads(line)
        if type(entry) is dict and not _has_large_number(entry):
            return entry
    except orjson.JSONDecodeError:
        pass
    # json, unlike orjson, accepts NaN and lone surrogates, preserves all digits of large integers (which may be
    # ids), and reports the position of errors.
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        must = f"{where}: each line must be one JSON object"
        raise InputError(f"{must}; {error.msg} at character {error.pos + 1}.") from None
    except (ValueError, RecursionError):  # a ValueError is also raised for more than 4300 digits
        must = f"{where}: each line must be one JSON object"
        raise InputError(f"{must}; a number has too many digits, or the nesting is too deep.") from None
    if not isinstance(entry, dict):
        raise InputError(f"{where}: each line must be one JSON object; got {type(entry).__name__}.")
    return entry


def parse_utterance(
    entry: dict[str, Any],
    where: str,
    folder: str | Path | None,
    required: Sequence[str] = REQUIRED_KEYS,
    labels: Sequence[str] = (),
) -> Utterance:
    """Make an utterance from the keys and values of a manifest line.

    Args:
        entry: keys and values; other keys are ignored.
        where: `file:line`, for errors.
        folder: path or URL to which audio paths are relative; None: the audio path is not changed.
        required: keys that the line must have.
        labels: keys that are read as labels; the line need not have them.

    Raises:
        InputError: the line is not an utterance.
    """
    for key in required:
        if key not in entry:
            missing = ", ".join(key for key in required if key not in entry)
            raise InputError(f"{where}: must have the keys {', '.join(required)}; missing {missing}.")
    audio_filepath, text, offset = entry["audio_filepath"], entry.get("text"), entry.get("offset")
    if text is None and "text" not in required:
        text = ""
    if type(audio_filepath) is not str or type(text) is not str:
        key, value = ("text", text) if type(audio_filepath) is str else ("audio_filepath", audio_filepath)
        raise InputError(f"{where}: {key} must be a string; got {shown(value)}.")
    utterance_id, speaker = entry.get("id"), entry.get("speaker")
    if utterance_id is None:
        written = printable_url(audio_filepath) if "://" in audio_filepath else audio_filepath  # without secrets
        utterance_id = written if offset is None else f"{written}@{offset}"
    if type(utterance_id) is not str:
        utterance_id = _named(utterance_id, f"{where}: id")
    if speaker is not None and type(speaker) is not str:
        speaker = _named(speaker, f"{where}: speaker")
    is_ascii = audio_filepath.isascii() and text.isascii() and utterance_id.isascii()
    if not (is_ascii and (speaker is None or speaker.isascii())):
        names = {"audio_filepath": audio_filepath, "text": text, "id": utterance_id, "speaker": speaker or ""}
        for key, value in names.items():
            check_unicode(value, f"{where}: {key}")
    speaker = None if speaker is None else known(speaker)
    duration = _seconds(entry["duration"])
    if duration is None or duration <= 0:
        must = "a number of seconds" if duration is None else "positive"
        raise InputError(f"{where}: duration must be {must}; got {shown(entry['duration'])} (id {utterance_id!r}).")
    if offset is not None:
        given, offset = offset, _seconds(offset)
        if offset is None or offset < 0:
            must = "be a number of seconds" if offset is None else "not be negative"
            raise InputError(f"{where}: offset must {must}; got {shown(given)} (id {utterance_id!r}).")
    path = audio_filepath if folder is None else join(str(folder), audio_filepath)
    values = _labels(entry, labels, where) if labels else {}
    return Utterance(path, duration, text, utterance_id, offset=offset, speaker=speaker, labels=values)


def _labels(entry: dict[str, Any], names: Sequence[str], where: str) -> dict[str, str]:
    """Return the labels that a line has."""
    labels = {name: entry[name] for name in names if entry.get(name) is not None}
    if isinstance(labels.get(HOTWORDS), list):
        phrases = labels.pop(HOTWORDS)
        labels |= {HOTWORDS: _lines(phrases, f"{where}: {HOTWORDS}")} if phrases else {}
    for name, value in labels.items():
        if not isinstance(value, str) or not value:
            raise InputError(f"{where}: {name} must be a non-empty string or null; got {shown(value)}.")
        check_unicode(value, f"{where}: {name}")
    return labels


def _lines(phrases: list[Any], where: str) -> str:
    """Join phrases to the value of a label, with one phrase per line."""
    for phrase in phrases:
        if not isinstance(phrase, str) or not phrase.strip():
            must = f"{where} must be a list of phrases, or one string with a phrase per line"
            raise InputError(f"{must}; got {shown(phrase)}.")
    return "\n".join(" ".join(phrase.split()) for phrase in phrases)


@lru_cache(maxsize=4096)
def known(name: str) -> str | None:
    """Return a name, such as a speaker's; None for UNKNOWN in any case and with any signs, and for signs alone."""
    letters = re.sub(r"[\W_]+", "", name.casefold())
    return None if name.strip() == NULL or UNKNOWN.fullmatch(letters) else name


def check_unicode(text: str, where: str) -> None:
    """Check that a text can be encoded to bytes."""
    if re.search("[\ud800-\udc7f\udd00-\udfff]", text):  # \udc80 to \udcff stand for bytes that are not UTF-8
        raise InputError(f"{where} must be Unicode text; it has a lone surrogate: {shown(text)}.")


def _has_large_number(entry: dict[str, Any]) -> bool:
    """Return whether a value may be an integer of more than 64 bits, which orjson parses as a float."""
    for value in entry.values():  # noqa: SIM110  a generator would be half as fast
        if type(value) is float and abs(value) >= 2**63:
            return True
    return False


def _named(value: Any, where: str) -> str:
    """Convert an id or speaker to a string; raise an InputError for a list or mapping."""
    if isinstance(value, (list, dict)):
        raise InputError(f"{where} must be a string or a number; got {shown(value)}.")
    return str(value)


def _seconds(value: Any) -> float | None:
    """Return a number of seconds as a float; None if the value is not a number."""
    if type(value) is float or type(value) is int:  # unlike isinstance, excludes bool
        return float(value) if abs(value) < MAX_SECONDS else None
    return None


def _to_line(utterance: Utterance, folder: Path) -> dict[str, Any]:
    audio = real(Path(utterance.audio_filepath))
    if audio.is_relative_to(folder):
        audio = audio.relative_to(folder)
    line: dict[str, Any] = {"id": utterance.id, "audio_filepath": str(audio), "duration": utterance.duration}
    if utterance.offset is not None:
        line["offset"] = utterance.offset
    if utterance.speaker is not None:
        line["speaker"] = utterance.speaker
    return line | dict(utterance.labels) | {"text": utterance.text}
