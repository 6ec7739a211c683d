"""From entries to manifests: what could not be taken over is named, what was written is told."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from asr.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from asr.text.numbers import counted
from asr.text.printable import printable
from recipes.command import complain
from recipes.convert.entry import Entry, Problems, utterances

MAX_NAMED = 10  # problems


def taken_over(source: Path, entries: Iterable[Entry], problems: Problems, *, skip_bad: bool) -> list[Utterance]:
    """Make entries of a source utterances; problems, of the reader too, are named on stderr, and counted if left out.

    `problems` are those of this source alone: each is named once.

    Raises:
        InputError: there is one and it is not to be skipped, or there is no utterance.
    """
    converted = list(utterances(entries, problems))
    for message in problems.messages[:MAX_NAMED]:
        complain(message)
    count = len(problems.messages)
    if count > MAX_NAMED:
        complain(f"and {count - MAX_NAMED:,} more")
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
