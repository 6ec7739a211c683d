"""A neural language model in one file: safetensors whose metadata hold the model's settings and token pieces."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asr.base.settings import plugins
from asr.base.system.learnt import parse_json
from asr.errors import InputError, reason_of

SUFFIX = ".safetensors"
METADATA = "token_model"  # key of the metadata
IN_A_RUN = ("weights.safetensors", "bundle/weights.safetensors")  # path of the model in a bundle, and in a run folder


class StoredTokenModel(NamedTuple):
    """The parts of a token model.

    Args:
        settings: settings of the component, including its name.
        pieces: the text of each token.
        weights: tensors by name.
    """

    settings: dict[str, Any]
    pieces: list[str]
    weights: dict[str, Tensor]


def write_token_model(
    path: Path,
    settings: Mapping[str, Any],
    pieces: Sequence[str],
    weights: Mapping[str, Tensor],
    packages: Mapping[str, Sequence[str]],
) -> None:
    """Write a token model; equal models give equal bytes.

    Args:
        path: path of the file.
        settings: settings of the component, including its name.
        pieces: the text of each token.
        weights: tensors by name.
        packages: the entry that names the plugins of the component (`recorded_plugins`).
    """
    content = {"settings": dict(settings), "pieces": list(pieces), **packages}
    metadata = {METADATA: json.dumps(content, ensure_ascii=False, sort_keys=True)}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, path, metadata)


def is_token_model(path: Path) -> bool:
    """Whether a path names a neural language model, and not an n-gram model; judged by the name alone."""
    return path.suffix == SUFFIX or path.is_dir()


def token_model_file(path: Path) -> Path:
    """Return the file of a model: the path itself, or the file in a bundle or a run folder.

    Raises:
        InputError: there is no such file.
    """
    files = [path / name for name in IN_A_RUN] if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            return file
    must = f"{path}: a neural language model must be a run folder of asr.train_lm, its bundle, or a {SUFFIX} file"
    raise InputError(f"{must}; {'it holds no bundle' if path.is_dir() else 'it does not exist'}.")


def read_token_model(path: Path) -> StoredTokenModel:
    """Read a token model.

    Raises:
        InputError: the file is damaged, is not a token model, or is of a plugin that the command has not named.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{path}: a neural language model must be safetensors; {reason_of(error)}.") from None
    content = parse_json(metadata.get(METADATA, "null").encode(), f"{path}: its metadata")
    match content:
        case {"settings": {"name": str()} as settings, "pieces": [*pieces]} if all(
            isinstance(piece, str) for piece in pieces
        ):
            plugins.check_named(content.get(plugins.KEY, []), path)
            return StoredTokenModel(settings, pieces, weights)
    raise InputError(f"{path}: must be a neural language model of asr.train_lm; its metadata describe no such model.")
