"""Conversion between bundles of asr and the archives of NVIDIA NeMo."""

from pathlib import Path

from asr.apps.convert.foreign import USUAL, Choices, Converted, check_rare, convert, errors_of
from asr.apps.convert.kinds import GUIDE, check_kind
from asr.apps.convert.nemo import conformer
from asr.apps.convert.nemo.archive import read_files
from asr.core.checkpoint.bundle import Bundle
from asr.core.hub.huggingface_files import CONFIG as CONFIG_OF_TRANSFORMERS
from asr.core.hub.nemo_files import CONFIG
from asr.errors import InputError, shown

MAX_NAMED = 4  # files that an error names


def from_nemo(path: Path, choices: Choices = USUAL) -> Converted:
    """Convert a `.nemo` archive, or a folder of its files, to a bundle."""
    with errors_of(path):
        if choices.texts is not None:
            raise InputError("--texts needs a model that was pre-trained only; a model of NeMo has a head.")
        check_rare(choices, ("language",), "a model of NeMo")
        files = read_files(path)
        if CONFIG not in files:
            check_kind(path)
            names = _names(path)
            has = f"; MODEL has {', '.join(map(shown, names))}" if names else ""
            must = f"{CONFIG} of NeMo, or {CONFIG_OF_TRANSFORMERS} of transformers, must exist{has}"
            advice = f"{GUIDE}. To convert a bundle of asr, add --to nemo or --to huggingface"
            raise InputError(f"{must}. {advice}.")
        return convert(path, conformer.read(files, path, choices))


def _names(path: Path) -> list[str]:
    """Return the names of some files of a folder; [] for an archive."""
    return sorted(file.name for file in path.iterdir())[:MAX_NAMED] if path.is_dir() else []


def to_nemo(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Return the files of a `.nemo` archive for a bundle."""
    return conformer.write(bundle, path)
