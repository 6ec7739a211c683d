"""A Conformer-CTC of another toolkit as a bundle: the way that is the same for each of them."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from asr.build import build_features, build_model, build_tokenizer
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer
from asr.errors import InputError, shown
from asr.features.slaney_fbank import SlaneyFbank
from asr.interchange.account import Account, Names, take
from asr.interchange.tensors import load_tensors
from asr.settings.conf import default_settings

EPS = 1e-5  # of their norms
JOINT_ACTIVATIONS = ("relu", "tanh")  # of transducers; those that our joiner has
SAFE_PIECES = set("▁'- ")  # of a model without case and punctuation
CURES = {
    "encoder.subsampling": " Only encoder=fast_conformer_* can be written so; train one.",
    "head.predictor": " Train with head/predictor=lstm.",
}
CTC, TRANSDUCERS = "ctc", ("transducer", "tdt")  # our heads that they have too
PARTS = {  # our parts that they have too
    "encoder": ("conformer",),
    "encoder.attention": ("relative_attention",),
    "encoder.convolution": ("depthwise_convolution",),
    "encoder.norm": ("masked_batch_norm",),
    "encoder.activation": ("swish",),
    "features": ("slaney_fbank",),
    "features.normalize": ("utterance_cmvn",),
    "head": (CTC, *TRANSDUCERS),
}


class Vocabulary(NamedTuple):
    """What a head's outputs spell.

    Args:
        config: of our tokenizer.
        files: what it has learnt.
        pieces: without the blank and the unknown one.
    """

    config: dict[str, Any]
    files: dict[str, bytes]
    pieces: list[str]


class HeadConfig(NamedTuple):
    """The config of one of our heads, and that of a decoder for it."""

    head: Mapping[str, Any]
    decode: Mapping[str, Any]


CTC_HEAD = HeadConfig({"name": "ctc"}, default_settings("decode", "greedy"))


class Weights(NamedTuple):
    """The tensors of a model of another toolkit.

    Args:
        file: their file's name.
        content: of it.
        names: of the tensors.
        scale: that the toolkit multiplies the subsampling's output by, and we do not.
    """

    file: str
    content: bytes
    names: Names
    scale: float


class Converted(NamedTuple):
    """A bundle, and what it was made of.

    Args:
        bundle: without a card.
        account: of the tensors.
        weights_sha256: of the file that they were in.
        writer: toolkit and version that the config names; "" if it names none.
    """

    bundle: Bundle
    account: Account
    weights_sha256: str
    writer: str


def convert(
    path: Path,
    vocabulary: Vocabulary,
    features: Mapping[str, Any],
    encoder: Mapping[str, Any],
    weights: Weights,
    head: HeadConfig = CTC_HEAD,
) -> tuple[Bundle, Account, str]:
    """Make a bundle, which loads.

    Args:
        path: where the model lies, for errors.
        vocabulary: of its head.
        features: the config of ours.
        encoder: the config of ours.
        weights: of the model.
        head: the config of ours, and its decoder's.

    Returns:
        The bundle, the account of the tensors, and the SHA-256 of their file.

    Raises:
        InputError: a tensor has no place, or a part cannot be made.
    """
    config = {
        "normalizer": normalizer_of(vocabulary.pieces),
        "tokenizer": vocabulary.config,
        "features": dict(features),
        "encoder": dict(encoder),
        "head": dict(head.head),
        "decode": dict(head.decode),
    }
    shapes, made = _shapes(config, vocabulary.files)
    tensors = load_tensors(weights.content, weights.file)
    ours, account = take(tensors, shapes, weights.names, made, weights.scale)
    bundle = Bundle(config, vocabulary.files, ours, card="")
    bundle_recognizer(bundle, path)  # it must load
    return bundle, account, hashlib.sha256(weights.content).hexdigest()


def _shapes(config: Mapping[str, Any], files: dict[str, bytes]) -> tuple[dict[str, torch.Size], SlaneyFbank]:
    """Tell the shapes of a model's tensors, and make its features; the net takes no memory."""
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.load(files)
    assert isinstance(features, SlaneyFbank)
    with torch.device("meta"):
        model = build_model(config, tokenizer, features)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}, features


def normalizer_of(pieces: list[str]) -> str:
    """Name the normaliser that leaves what the pieces spell as it is."""
    characters = set("".join(pieces)) - SAFE_PIECES
    plain = all(character.isalnum() and character == character.lower() for character in characters)
    return "basic" if plain else "as_written"


def check_parts(config: Mapping[str, Any], toolkit: str, subsamplings: tuple[str, ...]) -> None:
    """Check that one of our models is of parts that another toolkit has, too.

    Args:
        config: of the model.
        toolkit: its name.
        subsamplings: that it has.

    Raises:
        InputError: naming the first part that it does not have.
    """
    needed: dict[str, tuple[str, ...]] = {**PARTS, "encoder.subsampling": subsamplings}
    if config["head"]["name"] in TRANSDUCERS:
        needed["head.predictor"] = ("lstm",)
    for name, parts in needed.items():
        section, _, key = name.partition(".")
        part = config[section].get(key) if key else config[section]
        given = part.get("name") if isinstance(part, Mapping) else part
        if given not in parts:
            must = f"{name} must be {' or '.join(parts)}, to be written as {toolkit}'s"
            raise InputError(f"{must}; got {shown(given)}.{CURES.get(name, '')}")
    for name in ("encoder.norm", "features.normalize"):
        section, _, key = name.partition(".")
        eps = config[section][key]["eps"]
        if eps != EPS:
            raise InputError(f"{name}.eps must be {EPS}, which {toolkit} has; got {shown(eps)}.")
    beta = config["encoder"]["activation"]["beta"]
    if beta != 1:
        raise InputError(f"encoder.activation.beta must be 1, which {toolkit} has; got {shown(beta)}.")


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Put the model's path before what an error says, where it is not there."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {error}") from None
