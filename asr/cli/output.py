"""Where transcripts go: to standard output, or to a file each, in any of the formats."""

import argparse
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.command import complain_of
from asr.errors import InputError
from asr.recognition.formats import FORMATS, Format
from asr.storage.location import is_url
from asr.system.files import UNFINISHED, write_whole

if TYPE_CHECKING:
    from asr.data.manifest import Utterance
    from asr.recognition.transcript import Transcript

CHUNK = 256  # recordings that are sorted by length and run together; they are written in the order given
MAX_NAME_BYTES = 255  # of a file's name, on nearly every file system
KEPT_NAME_BYTES = 200  # of a longer one


@dataclass(frozen=True, slots=True)
class NamedRecording:
    """What is to be transcribed.

    Args:
        name: a file's path, or an utterance's id.
        utterance: where its audio is.
        place: of its file below --output-dir, without suffix.
    """

    name: str
    utterance: "Utterance"
    place: Path


Transcripts = Iterator[tuple[NamedRecording, "Transcript"]]
Outcomes = Iterator[tuple["Utterance", "Transcript | str"]]


def in_order(recordings: Sequence[NamedRecording], outcomes: "Callable[[list[Utterance]], Outcomes]") -> Transcripts:
    """Yield the transcripts in the order of the recordings; report those that have none.

    Args:
        recordings: whose names may repeat, in several manifests.
        outcomes: maps utterances to their outcomes, in any order: a transcript, or the reason why there is none.
    """
    for start in range(0, len(recordings), CHUNK):
        chunk: dict[str, NamedRecording] = {}
        for recording in recordings[start : start + CHUNK]:
            name = recording.name
            while name in chunk:  # of another manifest, or the same file again
                name += "'"
            chunk[name] = recording
        transcripts: dict[str, Transcript] = {}
        for utterance, outcome in outcomes(
            [replace(recording.utterance, id=name) for name, recording in chunk.items()]
        ):
            if isinstance(outcome, str):
                complain_of(chunk[utterance.id].name, outcome)
            else:
                transcripts[utterance.id] = outcome
        for name, recording in chunk.items():
            if name in transcripts:
                yield recording, transcripts[name]


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --format and --output-dir, which `arrange` and `write` take up."""
    parser.add_argument("--format", choices=FORMATS, default=default, help=f"of the output (default {default})")
    parser.add_argument("--output-dir", metavar="DIR", type=_place, help="gets a file for each recording")


def _place(text: str) -> Path | str:
    """Return a folder as a path; a URL as it is."""
    return text if is_url(text) else Path(text)


def plain_name(utterance_id: str) -> str:
    """Make an id a file name: an id may hold anything, even a path."""
    return re.sub(r"[/\\\x00-\x1f\x7f]|^\.+", "_", utterance_id) or "_"


def make_output_dir(output_dir: Path | str) -> None:
    """Make the folder for results, before the work begins."""
    if isinstance(output_dir, str):
        raise InputError(f"--output-dir must be a folder of this machine, but with --parts; got {output_dir}.")
    must = f"--output-dir must be a folder that can be written to; {output_dir}"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{must}: {reason}.") from None
    if not os.access(output_dir, os.W_OK | os.X_OK):
        raise InputError(f"{must}: Permission denied.")


def arrange(
    recordings: list[NamedRecording], options: argparse.Namespace, inputs: Sequence[str]
) -> list[NamedRecording]:
    """Put recordings into the order that the format needs, and check that each can have its place in the output.

    Args:
        recordings: to be written.
        options: of the command: format and output_dir.
        inputs: paths that the command was given; neither they nor the audio may be replaced.
    """
    form = FORMATS[options.format]
    if options.output_dir:
        make_output_dir(options.output_dir)
        recordings = [replace(recording, place=_fitting(recording.place, form.suffix)) for recording in recordings]
        _check_unlike(
            recordings,
            lambda recording: str(recording.place),
            f"would be written to the same file in {options.output_dir}, so each needs its own --output-dir",
        )
        read = {os.path.realpath(path) for path in inputs}
        read |= {os.path.realpath(recording.utterance.audio_filepath) for recording in recordings}
        for recording in recordings:
            path = _file_of(options.output_dir / recording.place, form)
            if os.path.realpath(path) in read:
                must = "--output-dir must be a folder in which no input would be replaced"
                raise InputError(f"{must}; {recording.name} would be written to {path}. Give another folder.")
        return recordings
    if form.single and len(recordings) > 1:
        must = f"--format {options.format} must have --output-dir for several recordings, since each needs its own file"
        raise InputError(f"{must}; got {len(recordings)} of them.")
    if form.key is not None:
        key = form.key
        _check_unlike(
            recordings, lambda recording: key(recording.name), f"would bear the same name in {options.format}"
        )
        return sorted(recordings, key=lambda recording: key(recording.name))
    return recordings


def _fitting(place: Path, suffix: str) -> Path:
    """Shorten a file name that is too long for file systems; a digest keeps it unique.

    It is cut between characters, where it is UTF-8.
    """
    name = os.fsencode(place.name)
    if len(name) + len(f".{suffix}{UNFINISHED}") <= MAX_NAME_BYTES:
        return place
    kept = name[:KEPT_NAME_BYTES].decode("utf-8", "ignore")
    return place.with_name(f"{kept}-{hashlib.sha256(name).hexdigest()[:8]}")


def _check_unlike(recordings: Sequence[NamedRecording], key: Callable[[NamedRecording], str], what: str) -> None:
    first: dict[str, str] = {}
    for recording in recordings:
        if key(recording) in first:
            other, name = first[key(recording)], recording.name
            both = f"two recordings called {name!r}" if other == name else f"{other!r} and {name!r}"
            raise InputError(f"{both} {what}. Give them in separate commands.")
        first[key(recording)] = recording.name


def write(transcripts: Transcripts, options: argparse.Namespace) -> Transcripts:
    """Write transcripts to files, or to stdout; pass them on when they are written."""
    form = FORMATS[options.format]
    if options.output_dir:
        for recording, transcript in transcripts:
            _write_file(options.output_dir / recording.place, form, recording.name, transcript)
            yield recording, transcript
        return
    passed: list[tuple[NamedRecording, Transcript]] = []

    def named() -> Iterator[tuple[str, "Transcript"]]:
        for recording, transcript in transcripts:
            passed.append((recording, transcript))
            yield recording.name, transcript

    for piece in form.stream(named()):
        print(piece, end="", flush=True)
        yield from passed
        passed.clear()


def _file_of(place: Path, form: Format) -> Path:
    return place.with_name(place.name + form.suffix)


def _write_file(place: Path, form: Format, name: str, transcript: "Transcript") -> None:
    content = form.write(name, transcript).encode("utf-8", "surrogateescape")
    path = _file_of(place, form)
    try:
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise InputError(f"{path}: a transcript must be written there; {error.strerror}.") from None
