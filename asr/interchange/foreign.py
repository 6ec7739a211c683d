"""Conversion of another toolkit's Conformer to a bundle: the steps that are the same for all toolkits."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from asr.build import PROMPT, build_features, build_labels, build_model, build_tokenizer
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer
from asr.errors import InputError, shown
from asr.features.slaney_fbank import SlaneyFbank
from asr.interchange.account import Account, Names, take
from asr.interchange.prompt import LanguagePrompt
from asr.interchange.sentences import described, round_trip
from asr.settings.conf import default_settings
from asr.text.numbers import counted
from asr.tokenizer.hidden import LANGUAGE_TAG

EPS = 1e-5  # eps of the norms in the other toolkits
JOINT_ACTIVATIONS = ("relu", "tanh")  # activations of transducers that asr's joiner supports
SAFE_PIECES = set("▁'- ")  # characters, besides letters and digits, in the pieces of texts without case and punctuation
CURES = {
    "encoder.subsampling": " Only encoder=fast_conformer_* can be converted.",
    "head.predictor": " Train with head/predictor=lstm.",
}
# Names of pieces that spell no text: tags of tasks and languages, ends of utterances, and special pieces.
HIDDEN = re.compile(rf"<\|.*\|>|{LANGUAGE_TAG.pattern}|<EOU>|<EOB>|<pad>|</?s>")
FULL_ATTENTION, LOCAL_ATTENTION = "relative_attention", "local_attention"
CTC, TRANSDUCER = "ctc", "transducer"  # heads of asr that the other toolkits also have
CONFORMER = "conformer"
PARTS = {  # parts of asr that the other toolkits also have, with any encoder
    "encoder.activation": ("swish",),
    "features": ("slaney_fbank",),
    "head": (CTC, TRANSDUCER),
}
CONFORMER_PARTS: dict[str, tuple[str, ...]] = {  # parts of a Conformer for whole recordings
    "encoder.convolution": ("depthwise_convolution",),
    "encoder.norm": ("masked_batch_norm",),
    "features.normalize": ("utterance_cmvn",),
}


class Vocabulary(NamedTuple):
    """The tokenizer of a head.

    Args:
        config: config of asr's tokenizer.
        files: files of asr's tokenizer.
        pieces: pieces without the blank, the unknown piece and hidden pieces.
        hidden: names of hidden pieces.
        notes: sentences on the tokenizer's conversion, for the user.
    """

    config: dict[str, Any]
    files: dict[str, bytes]
    pieces: list[str]
    hidden: list[str]
    notes: list[str]


class HeadConfig(NamedTuple):
    """Config of one of asr's heads, and of its decoder."""

    head: Mapping[str, Any]
    decode: Mapping[str, Any]


CTC_HEAD = HeadConfig({"name": "ctc"}, default_settings("decode", "greedy"))


class Weights(NamedTuple):
    """The tensors of another toolkit's model.

    Args:
        tensors: the tensors by name.
        sha256: SHA-256 of the file that holds them.
        names: names of the tensors.
        scale: factor by which the toolkit multiplies the subsampling's output; asr does not scale it.
    """

    tensors: dict[str, torch.Tensor]
    sha256: str
    names: Names
    scale: float


class Converted(NamedTuple):
    """A bundle, and its origin.

    Args:
        bundle: bundle without a card.
        account: numbers of tensors by their use.
        weights_sha256: SHA-256 of the file of the tensors.
        notes: sentences on the conversion, for the user.
        writer: toolkit and version according to the config; "" if the config has no version.
    """

    bundle: Bundle
    account: Account
    weights_sha256: str
    notes: list[str]
    writer: str


def convert(
    path: Path,
    vocabulary: Vocabulary,
    features: Mapping[str, Any],
    encoder: Mapping[str, Any],
    weights: Weights,
    head: HeadConfig = CTC_HEAD,
    prompt: LanguagePrompt | None = None,
) -> tuple[Bundle, Account, str, list[str]]:
    """Make a bundle, and check that it loads.

    Args:
        path: path of the model, for errors.
        vocabulary: vocabulary of the model's head.
        features: config of asr's features.
        encoder: config of asr's encoder.
        weights: weights of the model; its tensors are removed.
        head: config of asr's head and its decoder.
        prompt: prompt between encoder and head, if any; `weights.names` include its tensors.

    Returns:
        The bundle, the numbers of tensors by their use, the SHA-256 of the weights file, and notes for the user.

    Raises:
        InputError: a tensor has no counterpart, or a setting is invalid.
    """
    config = {
        "normalizer": normalizer_of(vocabulary.pieces),
        "tokenizer": vocabulary.config,
        "features": dict(features),
        "encoder": dict(encoder),
        "head": dict(head.head),
        "decode": dict(head.decode),
        **({PROMPT: prompt.config} if prompt else {}),
    }
    files = vocabulary.files | (prompt.files if prompt else {})
    shapes, slaney = _shapes(config, files)
    ours, account = take(weights.tensors, shapes, weights.names, slaney, weights.scale)
    weights.tensors.clear()  # gigabytes, of which loading the bundle makes another copy
    bundle = Bundle(config, files, ours, card="")
    model = bundle_recognizer(bundle, path).model  # raises an error if the bundle does not load
    notes = [
        *vocabulary.notes,
        _hidden_note(vocabulary.hidden),
        described(round_trip(model.tokenizer, model.normalize)),
    ]
    return bundle, account, weights.sha256, [note for note in notes if note]


def is_hidden(piece: str) -> bool:
    """Whether a piece with this name spells no text."""
    return HIDDEN.fullmatch(piece) is not None


def _hidden_note(hidden: list[str]) -> str:
    if not hidden:
        return ""
    pieces = counted(len(hidden), "hidden piece")
    return f"{pieces}, such as {shown(hidden[0])}: recognised like other pieces, but left out of texts."


def _shapes(config: Mapping[str, Any], files: dict[str, bytes]) -> tuple[dict[str, torch.Size], SlaneyFbank]:
    """Return the shapes of a model's tensors, and its front-end; the network is built without allocating weights."""
    tokenizer, features, labels = build_tokenizer(config), build_features(config), build_labels(config)
    tokenizer.load(files)
    labels.load(files)
    assert isinstance(features, SlaneyFbank)
    with torch.device("meta"):
        model = build_model(config, tokenizer, features, labels)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}, features


def normalizer_of(pieces: list[str]) -> str:
    """Return the name of the normaliser that does not change texts spelled with these pieces."""
    characters = set("".join(pieces)) - SAFE_PIECES
    plain = all(character.isalnum() and character == character.lower() for character in characters)
    return "basic" if plain else "as_written"


def kind_of(head: Mapping[str, Any]) -> str:
    """Return what other toolkits call a head: CTC, RNNT or TDT."""
    if head["name"] == CTC:
        return "CTC"
    return "TDT" if head["durations"] else "RNNT"


def check_parts(config: Mapping[str, Any], toolkit: str, encoders: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
    """Check that another toolkit has all parts of an asr model.

    Args:
        config: config of the model.
        toolkit: name of the toolkit.
        encoders: for each of asr's encoders that the toolkit has, the names of the parts that it has with this encoder.

    Raises:
        InputError: the toolkit does not have a part; the message names the first such part.
    """
    if PROMPT in config and config["head"]["name"] != TRANSDUCER:
        raise InputError(
            f"head must be {TRANSDUCER} for conversion of a model with a prompt; got {config['head']['name']}."
        )
    needed = {"encoder": tuple(encoders), **PARTS, **encoders.get(config["encoder"]["name"], {})}
    if config["head"]["name"] == TRANSDUCER:
        needed["head.predictor"] = ("lstm",)
    for name, parts in needed.items():
        section, _, key = name.partition(".")
        part = config[section].get(key) if key else config[section]
        given = part.get("name") if isinstance(part, Mapping) else part
        if given not in parts:
            must = f"{name} must be {' or '.join(parts)} for conversion to {toolkit}"
            raise InputError(f"{must}; got {shown(given)}.{CURES.get(name, '')}")
    for name in ("encoder.norm", "features.normalize"):
        section, _, key = name.partition(".")
        eps = config[section][key].get("eps", EPS)  # features.normalize=none has no eps
        if eps != EPS:
            raise InputError(f"{name}.eps must be {EPS}, as in {toolkit}; got {shown(eps)}.")
    beta = config["encoder"]["activation"]["beta"]
    if beta != 1:
        raise InputError(f"encoder.activation.beta must be 1, as in {toolkit}; got {shown(beta)}.")


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Put the model's path at the beginning of an error's message, unless it is there already."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {error}") from None
