"""Replacement of full attention by local attention in a Conformer; only settings change, weights do not."""

from dataclasses import replace
from pathlib import Path

from asr.apps.convert.conformer import FULL_ATTENTION, LOCAL_ATTENTION
from asr.apps.convert.foreign import errors_of
from asr.core.checkpoint.bundle import OF_A_BUNDLE, Bundle
from asr.core.checkpoint.load import BUNDLE, bundle_recognizer
from asr.errors import InputError, shown


def is_bundle(path: Path) -> bool:
    """Whether a path is a bundle or a run folder with a bundle, and not another toolkit's model."""
    return any(all((folder / name).is_file() for name in OF_A_BUNDLE) for folder in (path, path / BUNDLE))


def with_local_attention(bundle: Bundle, context: int, path: Path) -> Bundle:
    """Replace full attention by local attention, whose weights have the same names and shapes.

    Args:
        bundle: bundle of a model with full or local attention.
        context: number of encoder frames on each side.
        path: path of the model, for errors.
    """
    encoder = bundle.config["encoder"]
    block = encoder.get("block", {})
    attention = block.get("attention")
    name = attention.get("name") if isinstance(attention, dict) else attention
    if name not in (FULL_ATTENTION, LOCAL_ATTENTION):
        must = f"{path}: encoder.block.attention must be {FULL_ATTENTION}, to be replaced by {LOCAL_ATTENTION}"
        raise InputError(f"{must}; got {shown(name)}.")
    local = {"name": LOCAL_ATTENTION, "context": context, "bias": attention["bias"]}
    changed = replace(bundle, config={**bundle.config, "encoder": {**encoder, "block": {**block, "attention": local}}})
    with errors_of(path):
        bundle_recognizer(changed, path)  # raises an error if the bundle does not load
    return changed
