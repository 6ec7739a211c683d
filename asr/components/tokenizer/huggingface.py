"""Subwords as tokens, computed by Hugging Face's tokenizers library."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from asr.base.settings.rule import Text, whole
from asr.base.system.learnt import parse_json
from asr.base.text.hidden_pieces import ENDS, appended_ends, hidden_files, read_hidden, without_hidden
from asr.base.text.words import piece_of, text_of
from asr.components.tokenizer import byte_level
from asr.components.tokenizer.reserved import without_reserved
from asr.errors import InputError, how_to_install, shown

FILE = "tokenizer.json"
UNKNOWN = "<unk>"  # unknown piece of a tokenizer that asr trains
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # represents a space in pieces
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a piece that is a byte and not text
MAX_PIECE = 1_000  # maximum number of characters of a piece
# Parts that asr accepts in an untrusted tokenizer. A regular expression could run for ever, so PATTERNS contains only
# one regular expression, which is harmless.
STEPS = ("Precompiled", "Strip", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace")
METASPACE, BYTE_LEVEL = ["Metaspace", SPACE], [byte_level.TYPE, None]
PATTERNS: tuple[dict[str, str], ...] = ({"Regex": " {2,}"}, {"String": " "})
MODELS = ("BPE", "Unigram")


class HuggingFace:
    """Subwords of a `tokenizer.json`; asr itself trains only BPE.

    *Source*: BPE: Sennrich et al. 2016, arXiv:1508.07909; unigram: Kudo 2018, arXiv:1804.10959.

    Id 0 is CTC's blank. In the file, the blank may have any id; ids below it are increased by one to free 0. Pieces
    represent a space by SentencePiece's character, U+2581, or are bytes, as in GPT-2. Text with a character that no
    piece covers is an error.

    Args:
        vocab_size: number of ids, including blank and unknown.
        blank_piece: the piece of the file that is the blank.
    """

    piece_scores: Mapping[str, float] = MappingProxyType({})

    def __init__(self, *, vocab_size: Annotated[int, whole(3, 1_000_000)], blank_piece: Text) -> None:
        self.vocab_size = vocab_size
        self.blank_piece = blank_piece
        self.names: list[str] = []
        self.pieces: list[str] = []
        self._hidden: list[int] = []
        self._content = b""
        self._tokenizer: Any = None
        self._blank = 0  # id of the blank in the file

    def fit(self, texts: Iterable[str]) -> None:
        """Train BPE on `texts`; equal texts give identical files.

        Raises:
            InputError: the texts are too small for `vocab_size`, or contain a reserved name.
        """
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE(unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
        tokenizer.decoder = library.decoders.Metaspace()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self.vocab_size, special_tokens=[self.blank_piece, UNKNOWN], show_progress=False
        )
        with without_reserved(texts, (self.blank_piece, UNKNOWN, SPACE)) as others:
            tokenizer.train_from_iterator(others, trainer)
        if tokenizer.get_vocab_size() != self.vocab_size:
            must = f"tokenizer.vocab_size must suit the training text; got {self.vocab_size}"
            raise InputError(f"{must}. With this text BPE finds {tokenizer.get_vocab_size()} pieces.")
        self.load({FILE: (tokenizer.to_str() + "\n").encode()})

    def encode(self, text: str) -> list[int]:
        """Split `text` into pieces.

        Raises:
            InputError: no piece covers a character; the message names the character.
        """
        encoding = _safely(lambda: self._tokenizer.encode(text, add_special_tokens=False))
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._unspelled:
                if (name := text[begin:end].strip()) == self._tokenizer.id_to_token(token):
                    raise InputError(f"a text must not contain {name!r}, which {FILE} reserves; got {shown(text)}")
                unknown = text[begin:].lstrip()[:1]
                raise InputError(f"the tokenizer must cover every character; {unknown!r} is not in the training text")
        if self._no_bytes and (lost := self._lost(text)):
            raise InputError(f"the tokenizer must cover every character; got {lost!r}, with a byte that has no piece.")
        return [token + 1 if token < self._blank else token for token in encoding.ids]

    def _lost(self, text: str) -> str:
        """Return the first character of a text that has a byte without a piece, which the library leaves out."""
        normalizer = self._tokenizer.normalizer
        written = text if normalizer is None else normalizer.normalize_str(text)
        return next((character for character in written if self._no_bytes & {*character.encode()}), "")

    def decode(self, tokens: Iterable[int]) -> str:
        """Join pieces into text."""
        return text_of(tokens, self.pieces)

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer's file, as trained or as loaded."""
        return {FILE: self._content} | hidden_files(self._hidden)

    @property
    def takes_words(self) -> bool:
        """Whether `extend` takes pieces of several characters: not with BPE, which joins characters in pairs."""
        return json.loads(self._content)["model"]["type"] == "Unigram"

    def extend(self, pieces: Sequence[str]) -> None:
        """Append pieces, with the next ids, to the file's vocabulary.

        Raises:
            InputError: the file's model is BPE, which joins characters in pairs, and a piece is longer than a character
                at the beginning of a word, or lacks the piece of its character.
        """
        tokenizer = json.loads(self._content)
        if is_byte_level(self._content):
            raise InputError(
                f"{FILE} must not be a byte-level BPE, which has no new characters; got {shown(pieces[0])}."
            )
        model, own = tokenizer["model"], _names(self._tokenizer)
        appended = [piece.replace(" ", SPACE) for piece in pieces]
        if model["type"] == "Unigram":
            lowest = min(score for _, score in model["vocab"])
            # A piece's id is its place, so added tokens outside of the vocabulary, such as the blank, enter it.
            model["vocab"] += [[name, lowest] for name in [*own, *appended][len(model["vocab"]) :]]
        else:
            ids = {name: number for number, name in enumerate([*own, *appended])}
            pairs = [(name[:1], name[1:]) for name in appended if len(name) > 1 and name not in ENDS]
            for first, second in pairs:
                if first != SPACE or second not in ids or SPACE not in ids:
                    must = f"{FILE} is a BPE model, and can be extended by a character, also with {SPACE} before it"
                    raise InputError(f"{must}; got {shown(first + second)}. Give characters, {SPACE}x only beside x.")
            is_paired = bool(model["merges"]) and isinstance(model["merges"][0], list)
            model["merges"] += [[*pair] if is_paired else " ".join(pair) for pair in pairs]
            model["vocab"] = ids
        hidden = hidden_files([*self._hidden, *appended_ends(pieces, self.vocab_size)])
        self.vocab_size += len(pieces)
        self.load({FILE: (json.dumps(tokenizer, ensure_ascii=False) + "\n").encode(), **hidden})

    def load(self, files: dict[str, bytes]) -> None:
        """Restore the tokenizer from the output of `files`, or from another project's `tokenizer.json`.

        Raises:
            InputError: the file is damaged, or uses a part that asr does not accept.
        """
        self._content = files[FILE]
        self._tokenizer = _made(self._content)
        names = _names(self._tokenizer)
        if len(names) != self.vocab_size:
            raise InputError(f"tokenizer.vocab_size must be that of {FILE}, {len(names)}; got {self.vocab_size}.")
        if self.blank_piece not in names:
            raise InputError(f"tokenizer.blank_piece must be a piece of {FILE}; got {shown(self.blank_piece)}.")
        self._blank = names.index(self.blank_piece)
        unknown = unknown_piece(self._content)
        self._unspelled = {self._blank} if unknown is None else {self._blank, names.index(unknown)}
        others = [name for number, name in enumerate(names) if number != self._blank]
        self._no_bytes: set[int] = set()  # bytes without a piece
        if is_byte_level(self._content):
            self._no_bytes = {byte for character, byte in byte_level.BYTES.items() if character not in {*others}}
            others = [piece_of(byte_level.spelt_bytes(name)) for name in others]
        else:
            others = [name.replace(SPACE, " ") for name in others]
        self._hidden = read_hidden(files, self.vocab_size)
        self.names = ["", *map(byte_level.readable, others)]
        self.pieces = without_hidden(["", *others], self._hidden)


def _checked(tokenizer: Any) -> dict[str, Any]:
    """Return the parts that split and join text in an untrusted tokenizer; check that asr accepts each of them."""
    if not isinstance(tokenizer, Mapping) or not isinstance(tokenizer.get("model"), Mapping):
        raise InputError(f"{FILE} must hold a tokenizer's model; it holds none.")
    model, normalizer = tokenizer["model"], tokenizer.get("normalizer")
    kind = _spaces(tokenizer.get("pre_tokenizer"))
    for name, part, needed in (
        ("model.type", model.get("type"), MODELS[:1] if kind == BYTE_LEVEL else MODELS),
        ("model.dropout", model.get("dropout"), (None, 0.0)),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), (None, "")),
        ("model.end_of_word_suffix", model.get("end_of_word_suffix"), (None, "")),
        ("pre_tokenizer", kind, (METASPACE, BYTE_LEVEL)),
        ("decoder", _spaces(tokenizer.get("decoder")), (kind,)),
    ):
        if part not in needed:
            raise InputError(f"{FILE}: {name} must be one that asr accepts, such as {needed[0]}; got {shown(part)}.")
    for step in _steps(normalizer):
        if step.get("type") not in STEPS or step.get("pattern", PATTERNS[0]) not in PATTERNS:
            raise InputError(f"{FILE}: normalizer must consist of steps that asr accepts; got {shown(step)}.")
        if step["type"] == "Precompiled":
            _safely(partial(_precompiled, step.get("precompiled_charsmap")))
    if _unknown(model) is None and kind != BYTE_LEVEL:
        raise InputError(
            f"{FILE}: the model must have an unknown piece, for characters that no piece spells; it has none."
        )
    relevant = ("version", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")
    return {key: tokenizer.get(key) for key in relevant} | {"truncation": None, "padding": None, "post_processor": None}


def names(content: bytes) -> list[str]:
    """List the pieces of a `tokenizer.json` in the order of their ids in the file.

    Raises:
        InputError: the file is damaged, or uses a part that asr does not accept.
    """
    return _names(_made(content))


def _names(tokenizer: Any) -> list[str]:
    numbered = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    if any(name is None or len(name) > MAX_PIECE or BYTE.fullmatch(name) for name in numbered):
        must = f"{FILE} must number its pieces from 0, and each piece must be text of at most {MAX_PIECE:,} characters"
        raise InputError(f"{must}; a piece breaks this rule.")
    return numbered


def unknown_piece(content: bytes) -> str | None:
    """Return the unknown piece of a `tokenizer.json`; None: it is a byte-level BPE, which may have none.

    Raises:
        InputError: as in `names`.
    """
    return _unknown(_checked(parse_json(content, FILE))["model"])


def is_byte_level(content: bytes) -> bool:
    """Whether the pieces of a `tokenizer.json` are bytes.

    Raises:
        InputError: as in `names`.
    """
    return bool(_spaces(_checked(parse_json(content, FILE))["pre_tokenizer"]) == BYTE_LEVEL)


def steps(content: bytes) -> list[Mapping[str, Any]]:
    """List the steps of the normaliser of a `tokenizer.json`.

    Raises:
        InputError: as in `names`.
    """
    return _steps(_checked(parse_json(content, FILE))["normalizer"])


def _made(content: bytes) -> Any:
    """Return the library's tokenizer."""
    plain = _checked(parse_json(content, FILE))
    return _safely(lambda: _library().Tokenizer.from_str(json.dumps(plain)))


def _precompiled(content: Any) -> Any:
    """Build a single step of type Precompiled; a damaged step inside a tokenizer would raise no error."""
    return _library().normalizers.Precompiled(base64.b64decode(content))


def _unknown(model: Mapping[str, Any]) -> str | None:
    """Return the unknown piece of a model, or None."""
    number, pieces = model.get("unk_id"), model.get("vocab")
    if model["type"] == "BPE":
        name = model.get("unk_token")
        return name if isinstance(name, str) and isinstance(pieces, Mapping) and name in pieces else None
    if not isinstance(number, int) or not isinstance(pieces, list) or not 0 <= number < len(pieces):
        return None
    entry = pieces[number]
    return entry[0] if isinstance(entry, list) and entry and isinstance(entry[0], str) else None


def _steps(normalizer: Any) -> list[Mapping[str, Any]]:
    """List the steps of a normaliser."""
    steps: Any = [] if normalizer is None else [normalizer]
    if isinstance(normalizer, Mapping) and normalizer.get("type") == "Sequence":
        steps = normalizer.get("normalizers")
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
        raise InputError(f"{FILE}: normalizer must be a step or a list of steps; it is damaged.")
    return steps


def _spaces(part: Any) -> Any:
    """Return a part's type and its replacement for spaces; a split at whitespace before it changes nothing."""
    if isinstance(part, Mapping) and part.get("type") == "Sequence":
        steps = part.get("pretokenizers")
        if isinstance(steps, list) and len(steps) == 2 and steps[0] == {"type": "WhitespaceSplit"}:
            part = steps[1]
    return [part.get("type"), part.get("replacement")] if isinstance(part, Mapping) else part


def _library() -> Any:
    """Import the tokenizers library, an optional dependency."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive the fork of data loaders
    try:
        import tokenizers
    except ImportError:
        must = "tokenizer=huggingface needs the package tokenizers; it is not installed"
        raise InputError(f"{must}. {how_to_install('huggingface')}") from None
    return tokenizers


def _safely(call: Callable[[], Any]) -> Any:
    """Call the library and convert its errors to InputError, even Rust panics, which do not derive from `Exception`."""
    try:
        return call()
    except Exception as error:  # the library raises plain Exception for every fault
        raise InputError(f"{FILE} must be a tokenizer; it is damaged: {' '.join(str(error).split())[:300]}.") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{FILE} must be a tokenizer; it is damaged.") from None
