"""The formats of sources, in one table, and the choice among them by the names and first lines of files."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from asr.apps.finetune import (
    audio_folder,
    common_voice,
    kaldi,
    label_studio,
    lhotse,
    librispeech,
    ljspeech,
    manifest,
    parquet,
    table,
    text_files,
)
from asr.apps.finetune.entry import Reader, SourceOptions
from asr.apps.finetune.rows import first_object, is_json_list, is_utf_16
from asr.base.text.numbers import counted
from asr.base.text.printable import listed
from asr.errors import InputError


class SourceFormat(NamedTuple):
    """A format in which users have their data.

    Args:
        kind: noun with its article, for messages.
        accepts: whether a file or folder has the format, by its name and first lines; False for an absent one.
        read: yields the entries of a source; raises InputError if the source does not have the format.
        options: fields of `SourceOptions` that only some formats use, and that `read` uses.
    """

    kind: str
    accepts: Callable[[Path], bool]
    read: Reader
    options: tuple[str, ...]


FORMATS = {
    "manifest": SourceFormat("a manifest", manifest.accepts, manifest.read, ("root",)),
    "kaldi": SourceFormat("a Kaldi data directory", kaldi.accepts, kaldi.read, ("root",)),
    "label_studio": SourceFormat(
        "an export of Label Studio",
        label_studio.accepts,
        label_studio.read,
        ("root", "audio_column", "field", "annotator", "newest"),
    ),
    "common_voice": SourceFormat("a table of Common Voice", common_voice.accepts, common_voice.read, ("root",)),
    "ljspeech": SourceFormat("a metadata.csv like LJSpeech's", ljspeech.accepts, ljspeech.read, ("root",)),
    "audio_folder": SourceFormat(
        "an audio folder with metadata", audio_folder.accepts, audio_folder.read, ("root", "text_column")
    ),
    "librispeech": SourceFormat("a folder of LibriSpeech", librispeech.accepts, librispeech.read, ()),
    "table": SourceFormat("a table", table.accepts, table.read, ("root", "text_column", "audio_column")),
    "text_files": SourceFormat("a folder of audio with .txt files", text_files.accepts, text_files.read, ()),
    "parquet": SourceFormat("Parquet", parquet.accepts, parquet.read, ("text_column",)),
    "lhotse": SourceFormat("a manifest of lhotse", lhotse.accepts, lhotse.read, ("root", "recordings")),
}


def check_options(name: str, options: SourceOptions) -> None:
    """Check that no option of other formats is given; `name` is the name of the format."""
    for field in sorted({field for format in FORMATS.values() for field in format.options}):
        if getattr(options, field) not in (None, False) and field not in FORMATS[name].options:
            users = ", ".join(other for other, format in FORMATS.items() if field in format.options)
            option = f"--{field.replace('_', '-')}"
            raise InputError(f"{option} needs one of the formats {users}; got {name}. Leave out {option}.")


def recognised(path: Path, option: str) -> str:
    """Return the name of the only format that accepts a file or folder.

    Args:
        path: the file or folder.
        option: option of the command that names a format, for errors.
    """
    names = [name for name, format in FORMATS.items() if format.accepts(path)]
    if len(names) == 1:
        return names[0]
    if names:
        kinds = " or ".join(FORMATS[name].kind for name in names)
        raise InputError(f"{path} could be {kinds}. Give {' or '.join(f'{option} {name}' for name in names)}.")
    kinds = ", ".join(format.kind for format in FORMATS.values())
    cure = "Save it as UTF-8" if is_utf_16(path) else "Give the file or folder of one format"
    raise InputError(f"{path}: must be one of {kinds}; got {_content(path)}. {cure}.")


def _content(path: Path) -> str:
    """Return what a path is, for errors: for a folder, the kinds of files directly in it."""
    if not path.is_dir():
        if not path.exists():
            return "a path where nothing exists"
        keys = list(first_object(path))
        of = f", {'a JSON list' if is_json_list(path) else 'JSON'} with {listed(keys)}" if keys else ""
        return f"a file {path.suffix or 'without suffix'}{' in UTF-16' if is_utf_16(path) else ''}{of}"
    kinds = Counter("folder" if child.is_dir() else f"{child.suffix} file".strip() for child in path.iterdir())
    return f"a folder with {listed([counted(count, kind) for kind, count in kinds.most_common()]) or 'nothing'}"
