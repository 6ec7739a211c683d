"""NVIDIA NeMo's Conformer-CTC to a bundle, and back."""

import hashlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from asr.build import build_features, build_model, build_tokenizer
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer
from asr.checkpoint.nemo.archive import CONFIG, SAFETENSORS, WEIGHTS, read_files
from asr.checkpoint.nemo.config import (
    Settings,
    ctc_head,
    encoder_config,
    features_config,
    nemo_config,
    normalizer_of,
    parse,
    scale,
)
from asr.checkpoint.nemo.tokenizer import give_vocabulary, take_vocabulary
from asr.checkpoint.nemo.weights import Account, give, load_tensors, take
from asr.errors import InputError
from asr.features.slaney_fbank import SlaneyFbank
from asr.system.settings import default_settings


class Converted(NamedTuple):
    """A bundle, and what it was made of.

    Args:
        bundle: without a card.
        account: of the tensors.
        weights_sha256: of the file that they were in.
        nemo_version: that the config names; "" if it names none.
    """

    bundle: Bundle
    account: Account
    weights_sha256: str
    nemo_version: str


def from_nemo(path: Path, pad_mode: str) -> Converted:
    """Make a bundle of a `.nemo` archive, or of a folder of its files.

    Args:
        path: of either.
        pad_mode: what stands around the waveform: "zeros" in NeMo 3, "reflect" in NeMo 1.

    Raises:
        InputError: it cannot be read, or asks for what we do not have, or a tensor has no place.
    """
    files = read_files(path)
    try:
        return _convert(files, path, pad_mode)
    except InputError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {error}") from None


def _convert(files: dict[str, bytes], path: Path, pad_mode: str) -> Converted:
    if CONFIG not in files:
        raise InputError(f"{CONFIG} must be there; it is missing.")
    weights_name = next((name for name in (WEIGHTS, SAFETENSORS) if name in files), None)
    if weights_name is None:
        raise InputError(f"{WEIGHTS}, or {SAFETENSORS}, must be there; both are missing.")
    nemo = parse(files[CONFIG], CONFIG)
    head = ctc_head(nemo)
    encoder, features = encoder_config(nemo), features_config(nemo, pad_mode)
    vocabulary = take_vocabulary(nemo, head.settings, files, path)
    config = {
        "normalizer": normalizer_of(vocabulary.pieces),
        "tokenizer": vocabulary.config,
        "features": features,
        "encoder": encoder,
        "head": {"name": "ctc"},
        "decode": default_settings("decode", "greedy"),
    }
    shapes, made = _shapes(config, vocabulary.files)
    tensors = load_tensors(files[weights_name], weights_name)
    weights, account = take(tensors, shapes, made, head.tensors, head.others, scale(nemo))
    bundle = Bundle(config, vocabulary.files, weights, card="")
    bundle_recognizer(bundle, path)  # it must load
    sha256 = hashlib.sha256(files[weights_name]).hexdigest()
    version = nemo.get("nemo_version")
    is_plain = isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version, re.ASCII)
    return Converted(bundle, account, sha256, str(version) if is_plain else "")


def _shapes(config: Settings, files: dict[str, bytes]) -> tuple[dict[str, torch.Size], SlaneyFbank]:
    """Tell the shapes of a model's tensors, and make its features; the net takes no memory."""
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.load(files)
    assert isinstance(features, SlaneyFbank)
    with torch.device("meta"):
        model = build_model(config, tokenizer, features)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}, features


def to_nemo(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Make the files of a `.nemo` archive of a bundle whose parts NeMo has, too.

    Raises:
        InputError: it has others.
    """
    model = bundle_recognizer(bundle, path).model
    pieces, tokenizer, files = give_vocabulary(bundle.files, model.tokenizer.pieces)
    nemo = nemo_config(bundle.config, pieces, tokenizer)
    assert isinstance(model.features, SlaneyFbank)
    weights = io.BytesIO()
    torch.save(give(model.state_dict(), model.features), weights)
    text = yaml.safe_dump(nemo, sort_keys=False, allow_unicode=True).encode()
    return [*files, (CONFIG, text), (WEIGHTS, weights.getvalue())]
