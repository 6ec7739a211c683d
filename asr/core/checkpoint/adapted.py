"""Bundles and checkpoints of an adapter; they contain its small trained weights and the hash of its base model."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asr.base.settings.rule import PROBABILITY
from asr.core.build import Config, build_adapter
from asr.core.checkpoint.averaging import with_share_of
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.saved import MERGED
from asr.errors import InputError, shown

ADAPTER, BASE = "adapter", "base"  # keys of an adapter's config; the config of a whole model has neither
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # types of an adapter's tensors
# Keys of the entry BASE: hexadecimal hash of the base's tensors, the value of init.from, and the share of the base in
# each weight of the merged model, init.share, which is absent if it is 0.
SHA256, SOURCE, SHARE = "sha256", "source", "share"


def weights_digest(weights: Mapping[str, Tensor]) -> bytes:
    """Return the SHA-256 hash of the names and values of weights; the order of the weights does not affect it."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def base_config(digest: bytes, source: str) -> dict[str, str]:
    """Return the entry that describes the base in the config of an adapter."""
    return {SHA256: digest.hex(), SOURCE: source}


def with_share(bundle: Bundle, share: float) -> Bundle:
    """Return an adapter that is merged with this share of its base, from 0 to less than 1, in each weight."""
    base = bundle.config[BASE] | ({SHARE: share} if share else {})
    return replace(bundle, config=bundle.config | {BASE: base})


def is_adapter(config: Config) -> bool:
    """Return whether this is the config of an adapter that is not merged into its base."""
    return ADAPTER in config or BASE in config


def check_whole(bundle: Bundle, path: Path) -> Bundle:
    """Return the bundle if it is a whole model."""
    if not is_adapter(bundle.config):
        return bundle
    base = _base(bundle, path)
    must = f"{path}: an adapter needs its base; in training this was {shown(base[SOURCE])}"
    merge = f"Give --base MODEL, or merge: python -m asr.merge {path} --base MODEL -o FOLDER"
    cure = f"Give {path / MERGED}, where both are merged." if (path / MERGED).is_dir() else merge
    raise InputError(f"{must} (SHA-256 of its tensors {base[SHA256][:12]}...). {cure}")


def merged(bundle: Bundle, path: Path, base: Bundle, base_path: Path) -> Bundle:
    """Merge an adapter into its base; except for rounding, the outputs are those of the base with the adapter.

    Args:
        bundle: bundle of the adapter.
        path: path of the adapter, for errors.
        base: bundle of the base, a whole model.
        base_path: path of the base, for errors.
    """
    if not is_adapter(bundle.config):
        raise InputError(
            f"{path}: --base must be given for adapters only; this is a whole model. Leave out --base {base_path}."
        )
    expected = _base(bundle, path)
    actual = weights_digest(base.weights).hex()
    if actual != expected[SHA256]:
        must = f"{base_path}: the base must have the tensors with which the adapter {path} was trained"
        hashes = f"SHA-256 {expected[SHA256][:12]}... of {shown(expected[SOURCE])}, got {actual[:12]}..."
        raise InputError(f"{must}: {hashes}. Give the model that was the adapter's init.from.")
    _check_tensors(bundle.weights, base.weights, path)
    config = {key: value for key, value in bundle.config.items() if key not in (ADAPTER, BASE)}
    try:
        weights = build_adapter(bundle.config[ADAPTER]).merged(base.weights, bundle.weights)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for name, weight in weights.items():
        if weight is not base.weights.get(name) and not bool(weight.isfinite().all()):
            must = f"{path}: an adapter must leave the weights of its base finite"
            raise InputError(f"{must}; with it, {shown(name)} has NaN or infinity. Train the adapter again.")
    whole = replace(bundle, config=config, weights=weights)
    return replace(whole, weights=with_share_of(base, whole, expected.get(SHARE, 0.0)))


def _check_tensors(own: Mapping[str, Tensor], base: Mapping[str, Tensor], path: Path) -> None:
    """Check that an adapter has tensors, and that they can be added to, or take the place of, those of its base."""
    if not own:
        raise InputError(f"{path}: an adapter must have tensors; it has none.")
    for name, weight in own.items():
        is_integer = name in base and not base[name].is_floating_point()
        if weight.dtype not in ([base[name].dtype] if is_integer else FLOATS):
            raise InputError(f"{path}: tensors of an adapter must be float numbers; {shown(name)} is {weight.dtype}.")
        if not is_integer and not bool(weight.isfinite().all()):
            raise InputError(f"{path}: tensors of an adapter must be finite; {shown(name)} has NaN or infinity.")


def own_tensors(model: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that training can change; a checkpoint contains only these.

    These are the weights that require gradients, and the buffers of all modules except modules whose weights are all
    frozen: a frozen norm does not update its running statistics.
    """
    own = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter):
            is_own = tensor.requires_grad
        else:
            weights = list(model.get_submodule(name.rpartition(".")[0]).parameters(recurse=False))
            is_own = not weights or any(weight.requires_grad for weight in weights)
        if is_own:
            own.add(name)
    return frozenset(own)


def check_own(weights: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    """Check that an adapter has the tensors that its training can change, and no others.

    Args:
        weights: tensors of the adapter.
        model: the adapted model.
        path: path of the adapter, for errors.
    """
    expected = own_tensors(model)
    if missing := sorted(expected - weights.keys()):
        raise InputError(f"{path}: an adapter must have all of its tensors; {missing[0]} is missing.")
    if others := sorted(weights.keys() - expected):
        must = f"{path}: an adapter must have only the tensors that its settings train (adapter.modules, .trained)"
        raise InputError(f"{must}; {shown(others[0])} is another one. Use a bundle that asr.train wrote.")


def _base(bundle: Bundle, path: Path) -> dict[str, Any]:
    """Return the entry that describes the base in an adapter's config."""
    base: Any = bundle.config.get(BASE)
    named = isinstance(base, dict) and base.keys() - {SHARE} == {SHA256, SOURCE} and isinstance(base[SOURCE], str)
    if not named or not re.fullmatch(r"[0-9a-f]{64}", str(base[SHA256])) or ADAPTER not in bundle.config:
        must = f"{path}: an adapter's config must have the keys {ADAPTER} and {BASE}, and {BASE} the keys {SHA256} and"
        raise InputError(f"{must} {SOURCE}; got {shown(base)}.")
    if SHARE in base:
        PROBABILITY.check(f"{path}: {BASE}.{SHARE}", base[SHARE])
    return dict(base)
