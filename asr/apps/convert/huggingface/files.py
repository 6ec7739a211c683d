"""The folder of a model saved by Hugging Face's transformers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from asr.apps.convert.folder import read_folder
from asr.apps.convert.foreign import Choices, ModelParts
from asr.apps.convert.packages import Reader
from asr.apps.convert.section import Section, mapping
from asr.base.system.learnt import parse_json
from asr.core.checkpoint.bundle import CARD, replace_folder
from asr.core.hub.huggingface_files import (
    CONFIG,
    GENERATION,
    NEEDED,
    PREPROCESSOR,
    PROCESSOR,
    READ,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
)
from asr.errors import InputError

EXTRACTOR = "feature_extractor"  # section of PROCESSOR
WRITTEN = (CONFIG, GENERATION, PREPROCESSOR, PROCESSOR, TOKENIZER, TOKENIZER_CONFIG, VOCAB, WEIGHTS, CARD)


def is_huggingface(path: Path) -> bool:
    """Whether a path is a folder saved by transformers, and not a folder with the files of a `.nemo` archive."""
    return path.is_dir() and (path / CONFIG).exists()


class Folder(NamedTuple):
    """Files of a folder, and its configs.

    Args:
        files: contents of the files, by name.
        config: config of the model.
        preprocessor: config of the feature extractor.
        processor: config of the processor; empty if there is none.
    """

    files: dict[str, bytes]
    config: Section
    preprocessor: Section
    processor: Section


def read_model_folder(folder: Path) -> Folder:
    """Read the files that a recogniser needs from a folder.

    As in transformers 5, the section of the feature extractor in the processor's config is used rather than a file of
    its own, which may be an older one.
    """
    files = read_folder(folder, lambda name: name in READ, (WEIGHTS,))
    for name in NEEDED:
        if name not in files:
            raise InputError(f"{name} must exist; it is missing.")
    config = mapping(parse_json(files[CONFIG], CONFIG), CONFIG)
    processor = mapping(parse_json(files[PROCESSOR], PROCESSOR), PROCESSOR) if PROCESSOR in files else {}
    if EXTRACTOR in processor:
        return Folder(files, config, mapping(processor[EXTRACTOR], f"{PROCESSOR}: {EXTRACTOR}"), processor)
    if PREPROCESSOR not in files:
        must = f"{PREPROCESSOR}, or {PROCESSOR} with the section {EXTRACTOR}, must exist"
        raise InputError(f"{must}; neither does.")
    return Folder(files, config, mapping(parse_json(files[PREPROCESSOR], PREPROCESSOR), PREPROCESSOR), processor)


def model_type(path: Path) -> object:
    """Return what the config of a folder saved by transformers calls the architecture; None for another path."""
    if not is_huggingface(path):
        return None
    [content] = read_folder(path, lambda name: name == CONFIG, ()).values()
    return mapping(parse_json(content, CONFIG), CONFIG).get("model_type")


def of_transformers(name: str, read: Callable[[Folder, Choices], ModelParts]) -> Reader:
    """Return the reader of an architecture of transformers, whose `model_type` is `name`."""
    return Reader(name, lambda path: model_type(path) == name, lambda path, own: read(read_model_folder(path), own))


def to_json(value: Any) -> bytes:
    """Return the content of a file in JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def replace_converted(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder for transformers or of another format; an older one is replaced, as in `replace_bundle`."""

    def write(unfinished: Path) -> None:
        unfinished.mkdir(parents=True)
        for name, content in files.items():
            (unfinished / name).write_bytes(content)

    replace_folder(folder, {*WRITTEN, *files}, {*NEEDED} & files.keys() or files.keys(), write)
