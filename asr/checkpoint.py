"""Bundles and checkpoints: a trained recogniser on disk, and back.

A bundle is a folder: weights.safetensors, config.json (the model's part of the config), the files that tokenizer and
features learnt, and README.md, the model card. Nothing in it can run code, and the same state gives the same bytes.
"""

import json
import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asr.build import MODEL_KEYS, Config, build_features, build_recognizer, build_tokenizer
from asr.errors import InputError
from asr.interfaces import Features, Tokenizer
from asr.recognizer import Recognizer

WEIGHTS, CONFIG, CARD = "weights.safetensors", "config.json", "README.md"
BUNDLE = "bundle"  # its folder in a run folder
CHECKPOINTS = "checkpoints"
CHECKPOINT_KEY = "asr"  # of a Lightning checkpoint: the rest of what a bundle holds
PREFIX = "recognizer."  # of its weights


@dataclass(frozen=True)
class Bundle:
    """What a recogniser is made of: config, learnt files, weights."""

    config: dict[str, Any]
    files: dict[str, bytes]
    weights: dict[str, Tensor]


def load_recognizer(model: str | Path, device: str | torch.device = "cpu") -> Recognizer:
    """Load a recogniser, ready to recognise.

    Args:
        model: a run folder, a bundle, or a `.ckpt`.
        device: where to put the weights.

    Raises:
        InputError: there is no such model, or it is damaged, or it asks for what is not ours to build.
    """
    path = Path(model)
    bundle = _read_checkpoint(path) if path.suffix == ".ckpt" else _read_bundle(_bundle_folder(path))
    try:
        tokenizer, features = build_tokenizer(bundle.config), build_features(bundle.config)
        tokenizer.load(bundle.files)
        features.normalize.load(bundle.files)
        recognizer = build_recognizer(bundle.config, tokenizer, features)
        recognizer.load_state_dict(bundle.weights)
    except KeyError as error:
        raise InputError(f"{path}: a model must hold {error.args[0]}; it is not there.") from None
    except RuntimeError as error:  # load_state_dict: names or shapes that do not fit the config
        raise InputError(f"{path}: the weights must fit the config; {_one_line(error)}") from None
    return recognizer.to(device).eval()


def model_config(config: Config) -> dict[str, Any]:
    """Take the part of a training config that a bundle holds: never the corpus, nor anything to run."""
    return {key: config[key] for key in MODEL_KEYS}


def fitted_files(tokenizer: Tokenizer, features: Features) -> dict[str, bytes]:
    """Collect what tokenizer and features learnt."""
    return tokenizer.files() | features.normalize.files()


def checkpoint_extra(config: Config, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Prepare what a Lightning checkpoint keeps under `CHECKPOINT_KEY`, as types that `weights_only` loads."""
    return {"config": model_config(config), "files": {name: _to_tensor(content) for name, content in files.items()}}


def write_bundle(folder: str | Path, checkpoints: Sequence[Path], card: str) -> None:
    """Write the bundle of a checkpoint, or of the mean of several; an older one is replaced as a whole.

    Args:
        folder: where.
        checkpoints: Lightning checkpoints of one run.
        card: text of the model card.
    """
    folder = Path(folder)
    bundles = [_read_checkpoint(checkpoint) for checkpoint in checkpoints]
    weights = average([bundle.weights for bundle in bundles])
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, unfinished / WEIGHTS)
    os.chmod(unfinished / WEIGHTS, 0o644)  # safetensors makes it private
    (unfinished / CONFIG).write_text(json.dumps(bundles[0].config, indent=2) + "\n", encoding="utf-8")
    (unfinished / CARD).write_text(card, encoding="utf-8")
    for name, content in bundles[0].files.items():
        (unfinished / name).write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(unfinished, folder)


def average(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average the weights of several checkpoints, in float64 and back; of one, its own."""
    if len(weights) == 1:
        return dict(weights[0])
    return {
        name: torch.stack([one[name].double() for one in weights]).mean(dim=0).to(first.dtype)
        for name, first in weights[0].items()
    }


def _bundle_folder(path: Path) -> Path:
    """Find the bundle that a path means: itself, or the one in a run folder."""
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"{path}: a model must be a run folder, a bundle or a .ckpt; it {what}.")
    for folder in (path, path / BUNDLE):
        if (folder / CONFIG).is_file():
            return folder
    unfinished = sorted((path / CHECKPOINTS).glob("*.ckpt"))
    if unfinished:
        raise InputError(
            f"{path}: training has not ended, so there is no bundle yet; give a checkpoint: {unfinished[-1]}"
        )
    raise InputError(f"{path}: a model folder must hold {CONFIG} or {BUNDLE}/{CONFIG}; it holds neither.")


def _read_bundle(folder: Path) -> Bundle:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
        learnt = [file for file in sorted(folder.iterdir()) if file.name not in (WEIGHTS, CONFIG, CARD)]
        files = {file.name: file.read_bytes() for file in learnt if file.is_file()}
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: the bundle is damaged: {_one_line(error)}") from None
    return Bundle(_checked(config, folder), files, weights)


def _read_checkpoint(path: Path) -> Bundle:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint.") from None
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: not a checkpoint that can be loaded safely: {_one_line(error)}") from None
    extra = checkpoint.get(CHECKPOINT_KEY) if isinstance(checkpoint, dict) else None
    if extra is None:
        raise InputError(
            f"{path}: a checkpoint must hold config, tokenizer and normaliser; this one is not from asr.train."
        )
    state = checkpoint["state_dict"]
    weights = {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}
    files = {name: bytes(content.numpy()) for name, content in extra["files"].items()}
    return Bundle(_checked(extra["config"], path), files, weights)


def _checked(config: Any, where: Path) -> dict[str, Any]:
    if not isinstance(config, dict) or not all(key in config for key in MODEL_KEYS):
        raise InputError(f"{where}: a model's config must have the keys {', '.join(MODEL_KEYS)}.")
    return config


def _to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"
