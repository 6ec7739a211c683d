"""Convert entries to manifests; print problems and the size of each manifest."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from asr.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from asr.sources.entry import Problems, SourceEntry, utterances
from asr.text.numbers import counted
from asr.text.printable import printable
from recipes.command import complain

MAX_NAMED = 10  # maximum number of printed problems


def taken_over(source: Path, entries: Iterable[SourceEntry], problems: Problems, *, skip_bad: bool) -> list[Utterance]:
    """Convert the entries of a source to utterances; print all problems on stderr, including the reader's.

    `problems` must only contain problems of this source, so that each problem is printed once.

    Raises:
        InputError: there are problems and `skip_bad` is false, or there is no utterance.
    """
    converted = list(utterances(entries, problems))
    for message in problems.messages[:MAX_NAMED]:
        complain(message)
    count = len(problems.messages)
    if count > MAX_NAMED:
        complain(f"and {count - MAX_NAMED:,} more")
    if count and not skip_bad:
        fate = "no manifest was written. Correct the lines, or leave them out with --skip-bad"
        raise InputError(f"{counted(count, 'problem')}: {fate}.")
    if not converted:
        raise InputError(f"{source}: must hold at least one utterance; none was found.")
    if count:
        print(printable(f"{source}: {count:,} left out, see above"))
    if problems.num_cut:
        print(printable(f"{source}: {counted(problems.num_cut, 'utterance')} cut at the end of the recording"))
    return converted


def write_converted(manifests: Mapping[Path, Sequence[Utterance]]) -> None:
    """Write manifests, and print the size of each."""
    for manifest, converted in manifests.items():
        write_manifest(manifest, converted)
        hours = sum(utterance.duration for utterance in converted) / 3600
        speakers = len({utterance.speaker for utterance in converted} - {None})
        size = f"{counted(len(converted), 'utterance')}, {hours:.2f} h, {counted(speakers, 'known speaker')}"
        print(printable(f"{manifest}: {size}"))
