"""LibriSpeech's layout: *.trans.txt at any depth, with lines ID TEXT, and the audio ID.flac (or .wav, ...) beside it.

The speaker is the part of the id before the first hyphen. recipes/librispeech checks a published subset more strictly.
"""

from collections.abc import Iterator
from pathlib import Path

from asr.apps.finetune.entry import SourceEntry, SourceOptions, SourceReport, audio_beside, below
from asr.core.data.manifest import named_lines
from asr.errors import InputError

TRANSCRIPTS = "*.trans.txt"


def accepts(path: Path) -> bool:
    """Return whether a path is a folder with transcripts at any depth."""
    return next(_transcripts(path), None) is not None


def read(source: Path, options: SourceOptions, report: SourceReport) -> Iterator[SourceEntry]:
    """Read all transcripts below a folder, in the order of their paths."""
    transcripts = sorted(_transcripts(source))
    if not transcripts:
        raise InputError(f"{source}: must be a folder with {TRANSCRIPTS} at any depth; there are none.")
    for transcript in transcripts:
        for where, line in named_lines(transcript, "a transcript of LibriSpeech"):
            name, _, text = line.strip().partition(" ")
            if not text.strip():
                report.add(where, f"must be ID TEXT; got {name!r} alone")
            elif base := below(transcript.parent, name, where, report):
                yield SourceEntry(
                    where, audio_beside(base, ".flac"), text.strip(), name, speaker=name.partition("-")[0]
                )


def _transcripts(folder: Path) -> Iterator[Path]:
    """Yield the transcripts below a folder."""
    # macOS leaves a hidden `._x.trans.txt` beside `x.trans.txt`.
    return (path for path in folder.rglob(TRANSCRIPTS) if not path.name.startswith("."))
