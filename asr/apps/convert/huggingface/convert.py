"""Conversion between bundles of asr and folders of Hugging Face's transformers."""

from pathlib import Path

from asr.apps.convert.foreign import USUAL, Choices, Converted, check_rare, convert, errors_of
from asr.apps.convert.huggingface import parakeet
from asr.apps.convert.huggingface.config import KEYS
from asr.apps.convert.huggingface.files import model_type, of_transformers
from asr.apps.convert.kinds import check_kind
from asr.apps.convert.packages import HUGGING_FACE, fitting, readers, write_by_package
from asr.apps.convert.section import as_yaml
from asr.core.checkpoint.bundle import Bundle
from asr.errors import InputError

PARAKEET = [of_transformers(name, parakeet.read) for name in KEYS]


def from_huggingface(path: Path, choices: Choices = USUAL) -> Converted:
    """Convert a folder saved by transformers, or another model that the reader of a package fits, to a bundle."""
    with errors_of(path):
        known = [*PARAKEET, *readers()]
        reader = fitting(known, path)
        if reader is None:
            check_kind(path)
            *others, last = (reader.name for reader in known)
            raise InputError(f"model_type must be {', '.join(others)} or {last}; got {as_yaml(model_type(path))}.")
        check_rare(choices, reader.uses, reader.name)
        return convert(path, reader.read(path, choices))


def to_huggingface(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name; a Parakeet's if no package's writer fits."""
    return write_by_package(bundle, path, HUGGING_FACE) or parakeet.write(bundle, path)
