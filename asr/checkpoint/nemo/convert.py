"""NVIDIA NeMo's Conformer-CTC to a bundle, and back."""

import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from asr.build import build_features, build_recognizer, build_tokenizer
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer
from asr.checkpoint.nemo import tokenizer as pieces_of
from asr.checkpoint.nemo.archive import (
    CONFIG,
    HASHED,
    SAFETENSORS,
    TOKENIZER,
    VOCABULARY,
    WEIGHTS,
    hashed,
    read_files,
    tokenizer_file,
)
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
from asr.checkpoint.nemo.weights import Account, give, load_tensors, take
from asr.errors import InputError, shown
from asr.features.slaney_fbank import SlaneyFbank
from asr.system.learnt import to_json
from asr.system.settings import default_settings
from asr.tokenizer import char, sentencepiece


class Vocabulary(NamedTuple):
    """What a head's outputs spell.

    Args:
        config: of our tokenizer.
        files: that it learnt.
        pieces: without blank.
    """

    config: dict[str, Any]
    files: dict[str, bytes]
    pieces: list[str]


class Converted(NamedTuple):
    """A bundle, and what it was made of.

    Args:
        bundle: without a card.
        account: of the tensors.
        weights_sha256: of the file that they were in.
        nemo_version: that the config names, if it does.
    """

    bundle: Bundle
    account: Account
    weights_sha256: str
    nemo_version: str


def from_nemo(path: Path, pad_mode: str) -> Converted:
    """Make a bundle of a `.nemo` archive, or of a folder of its files.

    Args:
        path: of either.
        pad_mode: what stood around the waveform: "zeros" since NeMo 2, "reflect" before.

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
    vocabulary = _vocabulary(nemo, head.settings, files, path)
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
    return Converted(bundle, account, sha256, str(nemo.get("nemo_version", "")))


def _vocabulary(nemo: Settings, head: Settings, files: dict[str, bytes], path: Path) -> Vocabulary:
    """Take the tokenizer: SentencePiece's pieces, or characters where there is none.

    Raises:
        InputError: it is of another kind, or the head's vocabulary is not what it spells.
    """
    section = nemo.get("tokenizer")
    listed = head.get("vocabulary") or nemo.get("labels")
    if section is None:
        if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
            raise InputError(f"labels must be a list of characters, where no tokenizer is; got {shown(listed)}.")
        learnt = to_json(char.FILE, listed)
        build_tokenizer({"tokenizer": {"name": "char"}}).load(learnt)
        return Vocabulary({"name": "char"}, learnt, list(listed))
    if not isinstance(section, dict) or section.get("type") != "bpe" or section.get("custom_tokenizer"):
        given = section.get("type") if isinstance(section, dict) else section
        raise InputError(f"tokenizer.type must be bpe, a SentencePiece model, which asr has; got {shown(given)}.")
    model = tokenizer_file(files, section.get("model_path"), path)
    pieces = pieces_of.pieces(model)
    if isinstance(listed, list) and listed and listed != pieces:
        both = zip([*listed, None], [*pieces, None], strict=False)
        number, (wanted, there) = next((number, pair) for number, pair in enumerate(both) if pair[0] != pair[1])
        must = f"piece {number} of the tokenizer must be the vocabulary's {shown(wanted)}"
        raise InputError(f"{must}; got {shown(there)}.")
    learnt = {sentencepiece.FILE: pieces_of.with_blank(model)}
    config = {"name": "sentencepiece", "algorithm": pieces_of.algorithm(model), "vocab_size": len(pieces) + 1}
    return Vocabulary(config, learnt, pieces)


def _shapes(config: Settings, files: dict[str, bytes]) -> tuple[dict[str, torch.Size], SlaneyFbank]:
    """Tell the shapes of a model's tensors, and make its features; the net takes no memory."""
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.load(files)
    assert isinstance(features, SlaneyFbank)
    with torch.device("meta"):
        recognizer = build_recognizer(config, tokenizer, features)
    return {name: tensor.shape for name, tensor in recognizer.state_dict().items()}, features


def to_nemo(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Make the files of a `.nemo` archive of a bundle whose parts NeMo has, too.

    Raises:
        InputError: it has others.
    """
    config = bundle.config
    recognizer = bundle_recognizer(bundle, path)
    tokenizer: dict[str, str] = {}
    files: list[tuple[str, bytes]] = []
    if sentencepiece.FILE in bundle.files:
        model = pieces_of.without_blank(bundle.files[sentencepiece.FILE])
        vocabulary = pieces_of.pieces(model)
        listed = "".join(f"{piece}\n" for piece in vocabulary[1:]).encode()
        names = hashed(TOKENIZER, model), hashed(VOCABULARY, listed)
        tokenizer = {"dir": ".", "type": "bpe", "model_path": HASHED + names[0], "vocab_path": HASHED + names[1]}
        files = [(names[1], listed), (names[0], model)]
    else:
        vocabulary = list(recognizer.tokenizer.pieces[1:])
    nemo = nemo_config(config, vocabulary, tokenizer)
    assert isinstance(recognizer.features, SlaneyFbank)
    weights = io.BytesIO()
    torch.save(give(recognizer.state_dict(), recognizer.features), weights)
    text = yaml.safe_dump(nemo, sort_keys=False, allow_unicode=True).encode()
    return [*files, (CONFIG, text), (WEIGHTS, weights.getvalue())]
