"""Write manifests, and print their sizes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from asr.base.text.numbers import counted
from asr.base.text.printable import printable
from asr.core.data.manifest import Utterance, write_manifest


def write_converted(manifests: Mapping[Path, Sequence[Utterance]]) -> None:
    """Write manifests, and print the size of each."""
    for manifest, converted in manifests.items():
        write_manifest(manifest, converted)
        hours = sum(utterance.duration for utterance in converted) / 3600
        speakers = len({utterance.speaker for utterance in converted} - {None})
        size = f"{counted(len(converted), 'utterance')}, {hours:.2f} h, {counted(speakers, 'known speaker')}"
        print(printable(f"{manifest}: {size}"))
