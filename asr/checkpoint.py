"""Bundles and checkpoints: a trained recogniser on disk, and back.

A bundle is a folder: weights.safetensors, config.json (the model's part of the config), the files that tokenizer and
features learnt, and README.md, the model card. Nothing in it can run code, and the same state gives the same bytes.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asr.build import MODEL_KEYS, Config, build_features, build_recognizer, build_tokenizer
from asr.errors import InputError
from asr.files import UNFINISHED, sync_folder
from asr.interfaces import Features, Tokenizer
from asr.kept import kept_checkpoints
from asr.recognizer import Recognizer

WEIGHTS, CONFIG, CARD = "weights.safetensors", "config.json", "README.md"
FIXED = (WEIGHTS, CONFIG, CARD)  # names in every bundle
REPLACED = ".replaced"  # the end of an older bundle's name while it is replaced
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
    bundle = checkpoint_bundle(path) if path.suffix == ".ckpt" else _read_bundle(_bundle_folder(path))
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

    Whenever this ends, killed or not, the old bundle or the new one is there as a whole. For an instant it may be the
    old one under another name; the next call then begins by giving it back its own.

    Args:
        folder: where.
        checkpoints: Lightning checkpoints of one run.
        card: text of the model card.

    Raises:
        InputError: a checkpoint cannot be read, or has other weights than the first; or the folder holds anything but
            a bundle, or cannot be written to.
    """
    folder = Path(folder).resolve()  # what a link points to is replaced, not the link
    bundles = [checkpoint_bundle(checkpoint) for checkpoint in checkpoints]
    _check_same_weights(checkpoints, bundles)
    unfinished, replaced = (folder.with_name(f".{folder.name}{end}") for end in (UNFINISHED, REPLACED))
    try:
        if replaced.exists() and not folder.exists():  # killed on the way from the old to the new
            os.rename(replaced, folder)
        _check_replaceable(folder, bundles[0].files)
        for leftover in (unfinished, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            _write_files(unfinished, bundles[0], average([bundle.weights for bundle in bundles]), card)
            _swap(unfinished, folder, replaced)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: a bundle must be written there; {_one_line(error)}") from None


def average(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average the weights of several checkpoints, in float64 and back; of one, its own."""
    if len(weights) == 1:
        return dict(weights[0])
    return {
        name: torch.stack([one[name].double() for one in weights]).mean(dim=0).to(first.dtype)
        for name, first in weights[0].items()
    }


def _check_same_weights(checkpoints: Sequence[Path], bundles: Sequence[Bundle]) -> None:
    """Check that what is to be averaged has the same names, shapes and types."""
    expected, *others = ({name: _describe(weight) for name, weight in one.weights.items()} for one in bundles)
    for path, found in zip(checkpoints[1:], others, strict=True):
        for name in [*expected, *found]:
            if expected.get(name) != found.get(name):
                must = f"{path}: must have the same weights as {checkpoints[0]}, to be averaged with it"
                here, there = found.get(name, "missing"), expected.get(name, "missing")
                raise InputError(f"{must}; {name} is {here} here and {there} there.")


def _describe(weight: Tensor) -> str:
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"


def _check_replaceable(folder: Path, files: Iterable[str]) -> None:
    """Check that nothing would be lost but an older bundle."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: a bundle must be written to a folder; this is a file. Give another name.")
    there = {entry.name for entry in folder.iterdir() if entry.is_file()}
    strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in there & {*FIXED, *files})
    if strange or (there and not {WEIGHTS, CONFIG} <= there):
        what = ", ".join((strange or sorted(there))[:3])
        must = f"{folder}: a folder that a bundle replaces must be empty, or hold an older one of the kind alone"
        raise InputError(f"{must}; it holds {what}. Give another folder, or move that elsewhere.")


def _write_files(folder: Path, bundle: Bundle, weights: Mapping[str, Tensor], card: str) -> None:
    """Write a bundle's files, and see them safely on the disk."""
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
    os.chmod(folder / WEIGHTS, 0o644)  # safetensors makes it private
    (folder / CONFIG).write_text(json.dumps(bundle.config, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    for name, content in bundle.files.items():
        (folder / name).write_bytes(content)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _swap(unfinished: Path, folder: Path, replaced: Path) -> None:
    """Put the new folder in the place of the old one, which is removed once the new one is there."""
    if folder.exists():
        os.rename(folder, replaced)
    try:
        os.rename(unfinished, folder)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _bundle_folder(path: Path) -> Path:
    """Find the bundle that a path means: itself, or the one in a run folder."""
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise InputError(f"{path}: a model must be a run folder, a bundle or a .ckpt; it {what}.")
    for folder in (path, path / BUNDLE):
        if (folder / CONFIG).is_file():
            return folder
    unfinished = kept_checkpoints(path / CHECKPOINTS)
    if unfinished:
        what = "training has not ended, so there is no bundle yet; give a checkpoint"
        raise InputError(f"{path}: {what}: {unfinished[-1].path}")
    raise InputError(f"{path}: a model folder must hold {CONFIG} or {BUNDLE}/{CONFIG}; it holds neither.")


def _read_bundle(folder: Path) -> Bundle:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS)
        learnt = [file for file in sorted(folder.iterdir()) if file.name not in FIXED]
        files = {file.name: file.read_bytes() for file in learnt if file.is_file()}
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: the bundle is damaged: {_one_line(error)}") from None
    return Bundle(_checked(config, folder), files, weights)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a Lightning checkpoint as plain types and tensors, which lie in the file until they are used.

    Raises:
        InputError: it is not there, or damaged, or holds what could run code.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint.") from None
    except Exception as error:  # whatever torch stumbles over, nearly any kind there is, the file is at fault
        raise InputError(f"{path}: not a checkpoint that can be loaded safely: {_one_line(error)}") from None
    return checkpoint if isinstance(checkpoint, dict) else {}


def checkpoint_bundle(path: Path) -> Bundle:
    """Read what a bundle is made of from a Lightning checkpoint.

    Raises:
        InputError: it cannot be read, or is not from `asr.train`, or names a file that does not belong in a bundle.
    """
    checkpoint = read_checkpoint(path)
    extra = checkpoint.get(CHECKPOINT_KEY)
    if extra is None:
        raise InputError(
            f"{path}: a checkpoint must hold config, tokenizer and normaliser; this one is not from asr.train."
        )
    try:
        state = checkpoint["state_dict"]
        weights = {name.removeprefix(PREFIX): weight for name, weight in state.items() if name.startswith(PREFIX)}
        files = {name: bytes(content.numpy()) for name, content in extra["files"].items()}
        config = json.loads(json.dumps(extra["config"]))
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise InputError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {_one_line(error)}") from None
    for name in files:  # which may come from a stranger, and is going to be written to
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII) or name in FIXED:
            raise InputError(f"{path}: a learnt file must have a plain name; got {name!r}.")
    if not weights or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise InputError(f"{path}: the checkpoint is damaged: its weights must be tensors, and there must be some.")
    return Bundle(_checked(config, path), files, weights)


def _checked(config: Any, where: Path) -> dict[str, Any]:
    if not isinstance(config, dict) or not all(key in config for key in MODEL_KEYS):
        raise InputError(f"{where}: a model's config must have the keys {', '.join(MODEL_KEYS)}.")
    return config


def _to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"
