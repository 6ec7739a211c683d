"""The folder of a model saved by Hugging Face's transformers."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from asr.apps.convert.folder import read_folder
from asr.apps.convert.foreign import Choices, ModelParts, pop_tensors
from asr.apps.convert.packages import Reader
from asr.apps.convert.section import Section, as_yaml, mapping
from asr.apps.convert.tensors import load_tensors
from asr.base.system.learnt import parse_json
from asr.core.checkpoint.bundle import CARD, replace_folder
from asr.core.hub.huggingface_files import (
    CONFIG,
    FORMS,
    GENERATION,
    INDEX,
    NEEDED,
    PREPROCESSOR,
    PROCESSOR,
    SHARD,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB,
    WEIGHTS,
    wanted,
    weights_form,
)
from asr.errors import InputError, shown

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
    names = wanted([file.name for file in folder.iterdir()])
    files = read_folder(folder, lambda name: name in names, tuple(name for name in names if not name.endswith(".json")))
    if CONFIG not in files:
        raise InputError(f"{CONFIG} must exist; it is missing.")
    if weights_form(files) is None:
        kind = as_yaml(mapping(parse_json(files[CONFIG], CONFIG), CONFIG).get("model_type"))
        cure = (
            f"{CONFIG} is that of a model of transformers, {kind}: add the file of its weights, or give hf://OWNER/NAME"
        )
        raise InputError(f"the weights must exist: {', '.join(FORMS[:-1])} or {FORMS[-1]}; none does. {cure}.")
    config = mapping(parse_json(files[CONFIG], CONFIG), CONFIG)
    processor = mapping(parse_json(files[PROCESSOR], PROCESSOR), PROCESSOR) if PROCESSOR in files else {}
    if EXTRACTOR in processor:
        return Folder(files, config, mapping(processor[EXTRACTOR], f"{PROCESSOR}: {EXTRACTOR}"), processor)
    if PREPROCESSOR not in files:
        must = f"{PREPROCESSOR}, or {PROCESSOR} with the section {EXTRACTOR}, must exist"
        raise InputError(f"{must}; neither does.")
    return Folder(files, config, mapping(parse_json(files[PREPROCESSOR], PREPROCESSOR), PREPROCESSOR), processor)


def pop_weights(files: dict[str, bytes]) -> tuple[dict[str, Tensor], str]:
    """Remove the files of the weights, gigabytes, from the files of a folder.

    Returns:
        The tensors, and the SHA-256 of their files, one after the other in the order of their names.
    """
    form = weights_form(files)
    if form is None or not form.endswith(INDEX):
        return pop_tensors(files, form or WEIGHTS)
    placed = mapping(mapping(parse_json(files.pop(form), form), form).get("weight_map"), f"{form}: weight_map")
    tensors: dict[str, Tensor] = {}
    digest = hashlib.sha256()
    for shard in sorted({*map(str, placed.values())}):
        if shard not in files or not SHARD.fullmatch(shard):
            raise InputError(f"{form} must name files of the folder; {shown(shard)} is missing.")
        content = files.pop(shard)
        digest.update(content)
        own = load_tensors(content, shard)
        if twice := own.keys() & tensors.keys():
            raise InputError(f"{form}: a tensor must be in one file; {min(twice)} is also in {shard}.")
        tensors |= own
    for name, shard in placed.items():
        if name not in tensors:
            raise InputError(f"{form}: {shard} must have the tensor {shown(name)}; it has none.")
    return tensors, digest.hexdigest()


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
