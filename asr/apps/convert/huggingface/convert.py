"""Conversion between bundles of asr and folders of Hugging Face's transformers."""

from collections.abc import Callable, Mapping
from pathlib import Path

from asr.apps.convert.foreign import USUAL, Choices, Converted, ModelParts, convert, errors_of
from asr.apps.convert.huggingface import granite_speech5, lasr, parakeet, wav2vec2_bert
from asr.apps.convert.huggingface.config import KEYS
from asr.apps.convert.huggingface.files import Folder, read_model_folder
from asr.apps.convert.section import as_yaml
from asr.core.checkpoint.bundle import Bundle
from asr.errors import InputError

# The reader of each architecture, by its model_type.
READERS: Mapping[str, Callable[[Folder, Choices], ModelParts]] = {
    **dict.fromkeys(KEYS, parakeet.read),
    wav2vec2_bert.MODEL: wav2vec2_bert.read,
    granite_speech5.MODEL: granite_speech5.read,
    lasr.MODEL: lasr.read,
}

# Writers of the models with a part that no other architecture has; parakeet writes the others.
WRITERS = (
    (wav2vec2_bert.is_wav2vec2_bert, wav2vec2_bert.write),
    (granite_speech5.is_granite_speech5, granite_speech5.write),
    (lasr.is_lasr, lasr.write),
)


def from_huggingface(path: Path, choices: Choices = USUAL) -> Converted:
    """Convert a folder saved by transformers to a bundle."""
    with errors_of(path):
        folder = read_model_folder(path)
        kind = folder.config.get("model_type")
        if not isinstance(kind, str) or kind not in READERS:
            *others, last = READERS
            raise InputError(f"model_type must be {', '.join(others)} or {last}; got {as_yaml(kind)}.")
        return convert(path, READERS[kind](folder, choices))


def to_huggingface(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    for fits, write in WRITERS:
        if fits(bundle.config):
            return write(bundle, path)
    return parakeet.write(bundle, path)
