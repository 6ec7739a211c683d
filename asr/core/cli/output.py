"""Output of transcripts, in any of the formats, to standard output or to one file per recording."""

import argparse
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.system.files import UNFINISHED, write_whole
from asr.core.cli.command import complain_of
from asr.core.cli.parser import path_or_url
from asr.core.recognition.formats import FORMATS, Format
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance
    from asr.core.recognition.transcript import Transcript

CHUNK = 256  # number of recordings that are sorted by length and recognised together; output is in the given order
MAX_NAME_BYTES = 255  # limit of a file's name on nearly every file system
KEPT_NAME_BYTES = 200  # length to which a longer name is cut, before the digest is added


@dataclass(frozen=True, slots=True)
class NamedRecording:
    """A recording to transcribe.

    Args:
        name: a file's path, or an utterance's id.
        utterance: the audio of the recording.
        stem: path of the output file relative to --output-dir, without suffix.
    """

    name: str
    utterance: "Utterance"
    stem: Path


def named(utterances: "Sequence[Utterance]") -> list[NamedRecording]:
    """Name the recordings of a manifest by the ids of its utterances."""
    return [NamedRecording(line.id, line, Path(plain_name(line.id))) for line in utterances]


Transcripts = Iterator[tuple[NamedRecording, "Transcript"]]
Outcomes = Iterator[tuple["Utterance", "Transcript | str"]]


def in_order(recordings: Sequence[NamedRecording], outcomes: "Callable[[list[Utterance]], Outcomes]") -> Transcripts:
    """Yield the transcripts in the order of the recordings; print an error for each recording without a transcript.

    Args:
        recordings: recordings to transcribe; a name may occur in several manifests.
        outcomes: maps utterances to outcomes in any order; an outcome is a transcript or the reason for a failure.
    """
    for start in range(0, len(recordings), CHUNK):
        chunk: dict[str, NamedRecording] = {}
        for recording in recordings[start : start + CHUNK]:
            name = recording.name
            while name in chunk:  # the name occurs in two manifests, or the file was given twice
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
    """Add --format and --output-dir, used by `check_formats`, `arrange` and `write`."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        action=_Collected,
        default=[default],
        help=f"output format (default {default}); with --output-dir the option may be repeated",
    )
    parser.add_argument(
        "--output-dir", metavar="DIR", type=path_or_url, help="write a file for each recording to this folder"
    )


class _Collected(argparse.Action):
    """Collect the values of an option, each once; they replace the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, list(dict.fromkeys([*([] if before is self.default else before), values])))


def check_formats(options: argparse.Namespace) -> None:
    """Check that several formats are written to files, because standard output is one document."""
    if len(options.format) > 1 and not options.output_dir:
        must = "--format must be given once, or with --output-dir"
        raise InputError(f"{must}; got {', '.join(options.format)}. Add --output-dir DIR.")


def plain_name(utterance_id: str) -> str:
    """Convert an id, which may contain any characters, to a file name."""
    return re.sub(r"[/\\\x00-\x1f\x7f]|^\.+", "_", utterance_id) or "_"


def make_output_dir(output_dir: Path | str, option: str = "--output-dir") -> None:
    """Create the folder for results, which `option` names, before the work begins."""
    if isinstance(output_dir, str):
        raise InputError(f"{option} must be a local folder, except with --parts; got {output_dir}.")
    must = f"{option} must be a writable folder; {output_dir}"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{must}: {reason}.") from None
    if not os.access(output_dir, os.W_OK | os.X_OK):
        raise InputError(f"{must}: Permission denied.")


@contextmanager
def new_output_dir(output_dir: Path | None, option: str = "--output-dir") -> Iterator[None]:
    """Create the folder for results, if one is given; if the work fails, remove the empty folders that this created."""
    parents = [] if output_dir is None else [output_dir, *output_dir.parents]
    missing = [folder for folder in parents if not os.path.exists(folder)]
    try:
        if output_dir is not None:
            make_output_dir(output_dir, option)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # it has results, or could not be created
                folder.rmdir()
        raise


def arrange(
    recordings: list[NamedRecording], options: argparse.Namespace, inputs: Sequence[str]
) -> list[NamedRecording]:
    """Sort recordings as the format requires, and check that each has its own output; without any, make no folder.

    Args:
        recordings: recordings to transcribe.
        options: options of the command, with format and output_dir.
        inputs: the command's input paths; neither these files nor the audio may be replaced.
    """
    if not recordings:
        return recordings
    forms = [FORMATS[name] for name in options.format]
    if options.output_dir:
        make_output_dir(options.output_dir)
        longest = max((form.suffix for form in forms), key=len)
        recordings = [replace(recording, stem=_fitting(recording.stem, longest)) for recording in recordings]
        _check_unlike(
            recordings,
            lambda recording: str(recording.stem),
            f"have the same output file in {options.output_dir}, so each needs its own --output-dir",
        )
        read = {os.path.realpath(path) for path in inputs}
        read |= {os.path.realpath(recording.utterance.audio_filepath) for recording in recordings}
        for recording in recordings:
            for path in (_file_of(options.output_dir / recording.stem, form) for form in forms):
                if os.path.realpath(path) in read:
                    must = "--output-dir must be a folder where no output replaces an input"
                    raise InputError(f"{must}; {recording.name} would be written to {path}. Give another folder.")
        return recordings
    [name], [form] = options.format, forms
    if form.single and len(recordings) > 1:
        must = f"--format {name} needs --output-dir for several recordings, because each needs its own file"
        raise InputError(f"{must}; got {len(recordings)} recordings.")
    if form.key is not None:
        key = form.key
        _check_unlike(recordings, lambda recording: key(recording.name), f"have the same name in {name}")
        return sorted(recordings, key=lambda recording: key(recording.name))
    return recordings


def _fitting(stem: Path, suffix: str) -> Path:
    """Shorten a file name that is too long for file systems, and add a digest that keeps it unique.

    A UTF-8 name is cut between characters.
    """
    name = os.fsencode(stem.name)
    if len(name) + len(f".{suffix}{UNFINISHED}") <= MAX_NAME_BYTES:
        return stem
    prefix = name[:KEPT_NAME_BYTES].decode("utf-8", "ignore")
    return stem.with_name(f"{prefix}-{hashlib.sha256(name).hexdigest()[:8]}")


def _check_unlike(recordings: Sequence[NamedRecording], key: Callable[[NamedRecording], str], problem: str) -> None:
    first: dict[str, str] = {}
    for recording in recordings:
        if key(recording) in first:
            other, name = first[key(recording)], recording.name
            both = f"two recordings called {name!r}" if other == name else f"{other!r} and {name!r}"
            raise InputError(f"{both} {problem}. Give them in separate commands.")
        first[key(recording)] = recording.name


def write(transcripts: Transcripts, options: argparse.Namespace) -> Transcripts:
    """Write transcripts to files, in each format, or to stdout; yield each transcript after it is written."""
    forms = [FORMATS[name] for name in options.format]
    if options.output_dir:
        for recording, transcript in transcripts:
            for form in forms:
                _write_file(options.output_dir / recording.stem, form, recording.name, transcript)
            yield recording, transcript
        return
    [form] = forms
    passed: list[tuple[NamedRecording, Transcript]] = []

    def named() -> Iterator[tuple[str, "Transcript"]]:
        for recording, transcript in transcripts:
            passed.append((recording, transcript))
            yield recording.name, transcript

    for piece in form.stream(named()):
        print(piece, end="", flush=True)
        yield from passed
        passed.clear()


def _file_of(stem: Path, form: Format) -> Path:
    return stem.with_name(stem.name + form.suffix)


def _write_file(stem: Path, form: Format, name: str, transcript: "Transcript") -> None:
    content = form.write(name, transcript).encode("utf-8", "surrogateescape")
    path = _file_of(stem, form)
    try:
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise InputError(f"{path}: the file of a transcript must be writable; got: {error.strerror}.") from None
