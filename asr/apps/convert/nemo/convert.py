"""Conversion between bundles of asr and the archives of NVIDIA NeMo."""

from pathlib import Path

from asr.apps.convert.foreign import USUAL, Choices, Converted, convert, errors_of
from asr.apps.convert.kinds import check_kind
from asr.apps.convert.nemo import conformer
from asr.apps.convert.nemo.archive import read_files
from asr.core.checkpoint.bundle import Bundle
from asr.core.hub.nemo_files import CONFIG
from asr.errors import InputError


def from_nemo(path: Path, choices: Choices = USUAL) -> Converted:
    """Convert a `.nemo` archive, or a folder of its files, to a bundle."""
    with errors_of(path):
        if choices.texts is not None:
            raise InputError("--texts needs a model that was pre-trained only; a model of NeMo has a head.")
        files = read_files(path)
        if CONFIG not in files:
            check_kind(path)
            advice = "To convert a bundle of asr, add --to nemo or --to huggingface"
            raise InputError(f"{CONFIG} must exist; it is missing. {advice}.")
        return convert(path, conformer.read(files, path, choices))


def to_nemo(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Return the files of a `.nemo` archive for a bundle."""
    return conformer.write(bundle, path)
