"""Find recordings in folders and below URLs; no other module decides which files are recordings.

A file on disk is a recording if its name ends as a recording's, or if it begins as one, whatever its name. Below a URL
and in a tar file, where each look at a file would cost a request, names decide.
"""

import logging
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from asr.base.storage.location import file_name, printable_url
from asr.base.storage.store import list_prefix
from asr.errors import AudioError

# Names of recordings, whether or not they can be decoded: a file that cannot is an error when it is read.
AUDIO_SUFFIXES = (
    *(".wav", ".flac", ".mp3", ".opus", ".ogg", ".oga", ".m4a", ".mp4", ".webm", ".mov", ".mkv", ".mka", ".3gp"),
    *(".3g2", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".asf", ".au", ".avi", ".awb", ".caf", ".flv"),
    *(".gsm", ".m4b", ".m4v", ".mp2", ".mpeg", ".mpg", ".ogv", ".qt", ".rf64", ".snd", ".sph", ".spx", ".tta", ".voc"),
    *(".w64", ".wave", ".weba", ".wma", ".wmv", ".wv"),
)
MAX_KINDS = 8  # suffixes by which a line counts files
HEAD_BYTES = 16  # read from a file to recognise it
_HEADS = (
    rb"(?:RIFF|RIFX|RF64|BW64)....(?:WAVE|AVI )|riff\x2e\x91\xcf\x11|FORM....(?:AIF[FC]|8SVX|16SV)|caff\0\x01",
    rb"fLaC|OggS\0|ID3[\x02-\x04]|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xfd][\x10-\xef]|\xff[\xf0\xf1\xf8\xf9]",
    rb"\0...(?:moov|wide|free|skip|pnot)|....mdat|\0...ftyp(?!hei|hev|mif|msf|avi|crx)",  # QuickTime, MP4; no pictures
    rb"\x1a\x45\xdf\xa3|\x30\x26\xb2\x75\x8e\x66\xcf\x11|FLV\x01|\0\0\x01\xba|G@[\0\x11]",  # Matroska, ASF, Flash, MPEG
    rb"\.snd\0\0|dns\..{3}\0|NIST_1A|Creative Voice F|\x64\xa3[\x01-\x04]\0|fap \0| paf\0",
    rb"#!AMR|#!SILK|wvpk|TTA[12][\x01-\x03]\0|MAC .\x0f\0\0|MPCK|MP\+\x07|\.RMF\0|\.ra\xfd|DSD \x1c\0|qoaf\0|\x0b\x77",
)
_HEAD = re.compile(b"|".join(_HEADS), re.DOTALL)

logger = logging.getLogger(__name__)


class AudioFiles(NamedTuple):
    """The files below a folder, sorted; hidden ones are in neither list."""

    recordings: list[Path]
    others: list[Path]


def find_audio(path: str | Path) -> list[Path]:
    """Return `[path]` if it is a file; otherwise the sorted recordings below it. Other files are counted in a line.

    Raises:
        AudioError: as for `search_audio`; or there is no recording.
    """
    recordings, others = search_audio(path)
    _note_others(shown_path(path), [file.name for file in others], "begins")
    return recordings


def search_audio(path: str | Path) -> AudioFiles:
    """Return `[path]` if it is a file; otherwise the recordings and the other files below it.

    Hidden files and folders are skipped (macOS leaves a `._x.wav` beside `x.wav`). Links to folders are not followed,
    because they may form cycles.

    Raises:
        AudioError: the path does not exist, a folder cannot be listed, or there is no recording below it.
    """
    name = shown_path(path)
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise AudioError(f"{name}: must be an audio file or a folder of them; {reason_of_file(error)}.") from None
    if not is_folder:
        return AudioFiles([Path(path)], [])

    def refuse(error: OSError) -> None:
        raise AudioError(f"{shown_path(error.filename)}: folder cannot be listed; {reason_of_file(error)}.")

    files = AudioFiles([], [])
    for folder, subfolders, names in os.walk(path, onerror=refuse):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        for file in (Path(folder, name) for name in names if not name.startswith(".")):
            (files.recordings if is_recording(file) else files.others).append(file)
    if not files.recordings:
        raise _nothing_found(name, [file.name for file in files.others])
    return AudioFiles(sorted(files.recordings), sorted(files.others))


def find_audio_objects(url: str) -> list[str]:
    """Return `[url]` if it has the name of a recording; otherwise the sorted URLs of the recordings below it.

    Raises:
        AudioError: there is no recording below the URL.
        StoreError: the URL cannot be listed.
    """
    if has_audio_name(url):
        return [url]
    return audio_named((file for file, _ in list_prefix(url)), url)


def audio_named(urls: Iterable[str], where: str) -> list[str]:
    """Return those URLs that have the name of a recording. The others are counted in a line.

    Raises:
        AudioError: there are none.
    """
    recordings: list[str] = []
    others: list[str] = []
    for url in urls:
        (recordings if has_audio_name(url) else others).append(url)
    if not recordings:
        raise _nothing_found(shown_path(where), [file_name(url) for url in others])
    _note_others(shown_path(where), [file_name(url) for url in others], "is named")
    return recordings


def is_recording(path: Path) -> bool:
    """Return whether a file on disk is a recording, by its name or its first bytes."""
    if has_audio_name(path.name):
        return True
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe without a writer would block
            return False
        with open(path, "rb", buffering=0) as file:
            return begins_as_audio(file.read(HEAD_BYTES))
    except OSError:
        return False


def has_audio_name(name: str) -> bool:
    """Return whether the name of a file, or a URL, ends as a recording's."""
    return file_name(name).lower().endswith(AUDIO_SUFFIXES)


def begins_as_audio(head: bytes) -> bool:
    """Return whether the first HEAD_BYTES of a file are those of a recording."""
    return _HEAD.match(head) is not None


def _counted(names: list[str], noun: str) -> str:
    """Count files by suffix: "3 files (2 .docx, 1 .txt)"."""
    counts = Counter(os.path.splitext(name)[1].lower() or "without suffix" for name in names).most_common()
    kinds = [f"{count:,} {suffix}" for suffix, count in counts[:MAX_KINDS]]
    more = [f"{sum(count for _, count in counts[MAX_KINDS:]):,} of other kinds"] if len(counts) > MAX_KINDS else []
    return f"{len(names):,} {noun}{'s' * (len(names) != 1)} ({', '.join(kinds + more)})"


def _note_others(where: str, names: list[str], looks: str) -> None:
    if names:
        logger.warning("%s: left out %s, none of which %s as a recording.", where, _counted(names, "file"), looks)


def _nothing_found(where: str, names: list[str]) -> AudioError:
    other = f", but {_counted(names, 'other file')}" if names else ""
    return AudioError(f"{where}: must hold audio files (.wav .flac .mp3 .m4a ...); there are none below it{other}.")


# ---- names and reasons in errors about files


def shown_path(path: str | Path) -> str:
    """Return a path for messages: unchanged, or escaped and quoted if it is not printable on one line."""
    text = printable_url(os.fsdecode(path))
    return text if text and text.isprintable() else repr(text)


def reason_of_file(error: Exception) -> str:
    """Return an error's message without the path, line breaks and the final full stop."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file" + _in_another_form(Path(os.fsdecode(error.filename)))
    message = error.strerror if isinstance(error, OSError) else getattr(error, "error_string", None)
    return (message or str(error)).rstrip(".")


def _in_another_form(path: Path) -> str:
    """Return an addition to an error if a file exists under the same name in another Unicode normal form.

    macOS writes "é" as two characters (NFD), other programs as one (NFC); both look alike.
    """
    if not path.parts:  # the empty path, which has no name
        return ""
    existing = Path(path.anchor)
    try:
        for part in path.relative_to(existing).parts:
            name = unicodedata.normalize("NFC", part)
            same = (other for other in os.listdir(existing) if unicodedata.normalize("NFC", other) == name)
            existing /= part if (existing / part).exists() else next(same, part)
    except OSError:
        return ""
    if not existing.exists():
        return ""
    text = str(existing)
    form = next((form for form in ("NFC", "NFD") if unicodedata.is_normalized(form, text)), "mixed")
    return f", but there is {text!a}, which looks alike: its Unicode form is {form}. Write the path in this form"
