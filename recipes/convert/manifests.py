"""From entries to manifests: what could not be taken over is named, what was written is told."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from asr.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from asr.text.numbers import counted
from asr.text.printable import printable
from recipes.convert.entry import Entry, Problems, utterances

MAX_NAMED = 10  # problems


def run(command: Callable[[], None]) -> int:
    """Run a command that makes manifests; returns the exit status."""
    try:
        command()
    except InputError as error:
        _complain(str(error))
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        _complain(f"{named}{error.strerror or error}.")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    else:
        return 0
    return 1


def taken_over(source: Path, entries: Iterable[Entry], problems: Problems, *, skip_bad: bool) -> list[Utterance]:
    """Make entries of a source utterances; problems, of the reader too, are named on stderr, and counted if left out.

    `problems` are those of this source alone: each is named once.

    Raises:
        InputError: there is one and it is not to be skipped, or there is no utterance.
    """
    converted = list(utterances(entries, problems))
    for message in problems.messages[:MAX_NAMED]:
        _complain(message)
    count = len(problems.messages)
    if count > MAX_NAMED:
        _complain(f"and {count - MAX_NAMED:,} more")
    if count and not skip_bad:
        fate = "no manifest was written. Mend them, or leave them out by --skip-bad"
        raise InputError(f"{counted(count, 'problem')}: {fate}.")
    if not converted:
        raise InputError(f"{source}: must hold at least one utterance; none was found.")
    if count:
        print(printable(f"{source}: {count:,} left out, as said above"))
    return converted


def write_converted(manifests: Mapping[Path, Sequence[Utterance]]) -> None:
    """Write manifests, and print what is in each."""
    for manifest, converted in manifests.items():
        write_manifest(manifest, converted)
        hours = sum(one.duration for one in converted) / 3600
        speakers = len({one.speaker for one in converted} - {None})
        held = f"{counted(len(converted), 'utterance')}, {hours:.2f} h, {counted(speakers, 'known speaker')}"
        print(printable(f"{manifest}: {held}"))


def _complain(message: str) -> None:
    print(f"error: {printable(message)}", file=sys.stderr)
