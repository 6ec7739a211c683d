"""Readers and writers of models of other toolkits in packages with components: asr's zoo and plugins.

The module `convert` of a package lists them as READERS and WRITERS. A plugin's is imported only if the command names
the plugin.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from asr.apps.convert.foreign import Choices, ModelParts
from asr.base.settings.plugins import homes
from asr.core.checkpoint.bundle import Bundle
from asr.errors import InputError, reason_of, shown

MODULE, READERS, WRITERS = "convert", "READERS", "WRITERS"
HUGGING_FACE = "huggingface"  # the format of transformers


class Reader(NamedTuple):
    """Reads the models of an architecture.

    Args:
        name: name of the architecture, for errors: `model_type`, if its models are folders of transformers.
        fits: whether a path, of any file or folder, is such a model.
        read: converts the model at the path.
        uses: the choices of `foreign.RARE` that `read` uses; the others are refused.
    """

    name: str
    fits: Callable[[Path], bool]
    read: Callable[[Path, Choices], ModelParts]
    uses: Collection[str] = ()


class Writer(NamedTuple):
    """Writes the models of an architecture as folders.

    Args:
        name: name of the architecture, for errors.
        fits: whether a model, given its config, has a part that only this architecture has.
        write: converts a bundle, given its path for errors, to the files of the folder, by name.
        form: the value of `--to` that chooses the format of the folder: that of transformers, or another name.
    """

    name: str
    fits: Callable[[Mapping[str, Any]], bool]
    write: Callable[[Bundle, Path], dict[str, bytes]]
    form: str = HUGGING_FACE


Entry = TypeVar("Entry", Reader, Writer)


def readers() -> list[Reader]:
    """Return the readers of all packages."""
    return [*_entries(READERS, Reader)]


def writers() -> list[Writer]:
    """Return the writers of all packages."""
    return [*_entries(WRITERS, Writer)]


def _entries(name: str, kind: type[Entry]) -> Iterator[Entry]:
    for home in homes():
        if not (home.folder / f"{MODULE}.py").is_file():
            continue
        try:
            module = import_module(f"{home.package}.{MODULE}")
        except ImportError as error:
            raise InputError(f"{home.package}.{MODULE} must be importable; {reason_of(error)}.") from None
        if not {READERS, WRITERS} & vars(module).keys():
            raise InputError(f"{module.__name__} must define {READERS} or {WRITERS}; it defines neither.")
        entries = vars(module).get(name, [])
        listed = entries if isinstance(entries, list | tuple) else [entries]
        for entry in listed:
            if not isinstance(entry, kind):
                must = f"{module.__name__}.{name} must list objects of the class {kind.__name__} of {__name__}"
                raise InputError(f"{must}; got {shown(entry)}.")
            yield entry


def write_by_package(bundle: Bundle, path: Path, form: str) -> dict[str, bytes] | None:
    """Convert a bundle to the files of a folder by the writer of a package; None if no writer of the format fits."""
    writer = fitting([writer for writer in writers() if writer.form == form], bundle.config)
    return None if writer is None else writer.write(bundle, path)


def fitting(entries: Iterable[Entry], model: Any) -> Entry | None:
    """Return the reader that fits a path, or the writer that fits a config; None if there is none."""
    found = [entry for entry in entries if entry.fits(model)]
    if len(found) > 1:
        names = ", ".join(entry.name for entry in found)
        raise InputError(f"one architecture must fit the model; got {names}. Give fewer packages by --plugin.")
    return found[0] if found else None
