"""Bundles of neural language models, made from checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr.base.language_model.stored import write_token_model
from asr.core.build import build_tokenizer
from asr.core.checkpoint.averaging import average
from asr.core.checkpoint.bundle import (
    CARD,
    CONFIG,
    FIXED,
    OF_A_BUNDLE,
    WEIGHTS,
    Bundle,
    recorded_plugins,
    replace_folder,
    without_plugins,
)
from asr.core.checkpoint.formats import FORMAT, KEY, of_today
from asr.core.checkpoint.load import check_same_weights, checkpoint_bundle
from asr.errors import InputError

LANGUAGE_MODEL_KEYS = ("normalizer", "tokenizer", "token_model")  # keys of the config in a language model's bundle


def checked_language_model(stored: Any, where: Path) -> dict[str, Any]:
    """Check that a config has a language model's keys and the current format; remove the format number."""
    if not isinstance(stored, dict) or not all(key in stored for key in LANGUAGE_MODEL_KEYS):
        must = f"{where}: a language model's config must have the keys {', '.join(LANGUAGE_MODEL_KEYS)}"
        raise InputError(f"{must}. Give a checkpoint of asr.train_lm.")
    return of_today(without_plugins(stored, where), where)


def write_language_model(folder: Path, checkpoints: Sequence[Path], card: str) -> None:
    """Write a bundle of one checkpoint or of the average of several of one run, atomically replacing an older bundle.

    The bundle contains weights.safetensors, which is sufficient for decoding (`asr.base.language_model.stored`),
    config.json, the tokenizer's files and README.md.
    """
    bundles = [checkpoint_bundle(checkpoint, checked_language_model) for checkpoint in checkpoints]
    check_same_weights(checkpoints, bundles)
    first, *_ = bundles
    weights = average([bundle.weights for bundle in bundles], [1.0] * len(bundles))
    model = Bundle(first.config, first.files, weights, card)
    replace_folder(folder, [*FIXED, *first.files], OF_A_BUNDLE, lambda unfinished: _write(unfinished, model))


def _write(folder: Path, model: Bundle) -> None:
    folder.mkdir(parents=True)
    tokenizer = build_tokenizer(model.config)
    tokenizer.load(model.files)
    token_model = model.config["token_model"]
    packages = recorded_plugins({"token_model": token_model})
    write_token_model(folder / WEIGHTS, token_model, tokenizer.names, model.weights, packages)
    (folder / WEIGHTS).chmod(0o644)  # otherwise only the owner could read the file that safetensors wrote
    settings = {KEY: FORMAT, **recorded_plugins(model.config), **model.config}
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(model.card, encoding="utf-8")
    for name, content in model.files.items():
        (folder / name).write_bytes(content)
