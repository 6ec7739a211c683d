"""Conversion of another toolkit's model to a bundle: the steps that are the same for all architectures."""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from asr.apps.convert.account import Account, Counterparts, take
from asr.apps.convert.prompt import LanguagePrompt
from asr.apps.convert.sentences import described, round_trip
from asr.apps.convert.tensors import load_tensors
from asr.base.settings.conf import default_settings
from asr.base.text.hidden_pieces import ENDS, LANGUAGE_TAG
from asr.base.text.numbers import counted
from asr.core.build import PROMPT, build_features, build_labels, build_model, build_tokenizer
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.errors import InputError, shown

SAFE_PIECES = set("▁'- ")  # characters, besides letters and digits, in the pieces of texts without case and punctuation
# Names of pieces that spell no text: tags of tasks and languages, ends of utterances, and special pieces.
HIDDEN = re.compile(rf"<\|.*\|>|{LANGUAGE_TAG.pattern}|{'|'.join(ENDS)}|<pad>|</?s>")


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
        counterparts: the tensors for those of asr.
    """

    tensors: dict[str, Tensor]
    sha256: str
    counterparts: Counterparts


class Choices(NamedTuple):
    """The user's choices for a conversion.

    Args:
        pad_mode: padding of the waveform at both ends: "zeros" in transformers; a model trained by NeMo 1 needs
            "reflect".
        texts: texts whose characters are the tokens of a new head, for a model without one; None: the model has a head.
        adapter: whether a new adapter block is added to a model without head and adapter.
        language: the language to cut out of a model that has a tokenizer for each; None: the model has one tokenizer.
        tokenizer: file of the tokenizer; None: its place is that of the toolkit.
        average: number of epochs whose weights are averaged; None: the weights of the checkpoint.
    """

    pad_mode: str = "zeros"
    texts: Sequence[str] | None = None
    adapter: bool = False
    language: str | None = None
    tokenizer: Path | None = None
    average: int | None = None


USUAL = Choices()
RARE = ("language", "tokenizer", "average")  # choices that most architectures have no use for


def check_rare(choices: Choices, used: Collection[str], model: str) -> None:
    """Check that the rare choices that the user makes are used.

    Args:
        choices: the user's choices.
        used: names of the rare choices that the model has a use for.
        model: name of the model's kind.
    """
    for name in RARE:
        if getattr(choices, name) is not None and name not in used:
            raise InputError(f"--{name} must be absent for {model}, which has no use for it. Leave it out.")


class ModelParts(NamedTuple):
    """What the reader of an architecture makes of the files of a model.

    Args:
        vocabulary: vocabulary of the model's head.
        features: config of asr's features.
        encoder: config of asr's encoder.
        weights: weights of the model.
        head: config of asr's head and its decoder.
        prompt: prompt between encoder and head, if any; `weights.counterparts` include its tensors.
        notes: sentences on the conversion, for the user.
        writer: toolkit and version according to the config; "" if the config has no version.
        new: modules of asr that the model does not have; they get random weights.
    """

    vocabulary: Vocabulary
    features: Mapping[str, Any]
    encoder: Mapping[str, Any]
    weights: Weights
    head: HeadConfig
    prompt: LanguagePrompt | None = None
    notes: Sequence[str] = ()
    writer: str = ""
    new: Sequence[str] = ()


class Converted(NamedTuple):
    """A bundle, and its origin.

    Args:
        bundle: bundle without a card.
        account: numbers of tensors by their use.
        weights_sha256: SHA-256 of the file of the tensors.
        notes: sentences on the conversion, for the user.
        writer: toolkit and version according to the config; "" if the config has no version.
        new: modules with random weights, which must be trained first.
    """

    bundle: Bundle
    account: Account
    weights_sha256: str
    notes: list[str]
    writer: str
    new: Sequence[str] = ()


def convert(path: Path, parts: ModelParts) -> Converted:
    """Make a bundle, and check that it loads.

    Args:
        path: path of the model, for errors.
        parts: parts of the model; the tensors of its weights are removed.
    """
    vocabulary, weights, prompt = parts.vocabulary, parts.weights, parts.prompt
    config = {
        "normalizer": normalizer_of(vocabulary.pieces),
        "tokenizer": vocabulary.config,
        "features": dict(parts.features),
        "encoder": dict(parts.encoder),
        "head": dict(parts.head.head),
        "decode": dict(parts.head.decode),
        **({PROMPT: prompt.config} if prompt else {}),
    }
    files = vocabulary.files | (prompt.files if prompt else {})
    shapes, new = _shapes(config, files, parts.new)
    ours, account = take(weights.tensors, shapes, weights.counterparts)
    weights.tensors.clear()  # gigabytes, of which loading the bundle makes another copy
    bundle = Bundle(config, files, ours | new, card="")
    model = bundle_recognizer(bundle, path).model  # raises an error if the bundle does not load
    notes = [
        *parts.notes,
        *vocabulary.notes,
        _hidden_note(vocabulary.hidden),
        described(round_trip(model.tokenizer, model.normalize)),
    ]
    return Converted(bundle, account, weights.sha256, [note for note in notes if note], parts.writer, parts.new)


def pop_tensors(files: dict[str, bytes], name: str) -> tuple[dict[str, Tensor], str]:
    """Remove the file of the weights, gigabytes, from the files; return its tensors and its SHA-256."""
    content = files.pop(name)
    return load_tensors(content, name), hashlib.sha256(content).hexdigest()


def written_by(toolkit: str, version: object) -> str:
    """Return a toolkit and its version according to a config; "" if the config has no version."""
    is_plain = isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version, re.ASCII)
    return f"{toolkit} {version}" if is_plain else ""


def is_hidden(piece: str) -> bool:
    """Whether a piece with this name spells no text."""
    return HIDDEN.fullmatch(piece) is not None


def _hidden_note(hidden: list[str]) -> str:
    if not hidden:
        return ""
    pieces = counted(len(hidden), "hidden piece")
    return f"{pieces}, such as {shown(hidden[0])}: recognised like other pieces, but left out of texts."


def _shapes(
    config: Mapping[str, Any], files: dict[str, bytes], new: Sequence[str]
) -> tuple[dict[str, torch.Size], dict[str, Tensor]]:
    """Return the shapes of a model's tensors, and the tensors of its new modules, which have random weights.

    The network is built without allocating weights; those of new modules are made afterwards.
    """
    tokenizer, features, labels = build_tokenizer(config), build_features(config), build_labels(config)
    tokenizer.load(files)
    labels.load(files)
    with torch.device("meta"):
        model = build_model(config, tokenizer, features, labels)
    begins = tuple(f"{name}." for name in new)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, module in model.named_modules():
            if f"{name}.".startswith(begins) and any(True for _ in module.parameters(recurse=False)):
                module.to_empty(device="cpu", recurse=False)
                cast(Any, module).reset_parameters()  # all of torch's layers have this method
    tensors = model.state_dict()
    made = {name: tensor for name, tensor in tensors.items() if name.startswith(begins)}
    return {name: tensor.shape for name, tensor in tensors.items() if name not in made}, made


def normalizer_of(pieces: list[str]) -> str:
    """Return the name of the normaliser that does not change texts spelled with these pieces."""
    characters = set("".join(pieces)) - SAFE_PIECES
    plain = all(character.isalnum() and character == character.lower() for character in characters)
    return "basic" if plain else "as_written"


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Put the model's path at the beginning of an error's message, unless it is there already."""
    try:
        yield
    except InputError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {error}") from None
