"""Tokens of icefall's models: a SentencePiece model, or a list of characters or pieces with their numbers."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asr.apps.convert.foreign import Vocabulary
from asr.apps.convert.subword_model import algorithm, model_of, processor_of, with_blank, with_pieces, without_prefix
from asr.base.system.learnt import MAX_BYTES
from asr.base.text.hidden_pieces import hidden_files
from asr.components.tokenizer.sentencepiece import FILE, SPACE, UNKNOWN_ID
from asr.components.tokenizer.subword_pieces import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SubwordPiece
from asr.errors import InputError, shown

SUBWORDS, LIST = "bpe.model", "tokens.txt"
# Files relative to the checkpoint, and the folders of recipes.
PLACES = {SUBWORDS: "data/lang_bpe_*/", LIST: "data/lang_char*/"}
BLANK_NAME, BOUNDARY_NAME, UNKNOWN_NAME = "<blk>", "<sos/eos>", "<unk>"
DISAMBIGUATION = re.compile(r"#\d+")  # symbols of a lexicon, which the model does not have
FEWEST = (
    f"texts are split into the fewest pieces, which may differ from those of the model's training; {SUBWORDS} has them."
)


class Tokens(NamedTuple):
    """The pieces of a head.

    Args:
        vocabulary: the tokenizer.
        order: number of icefall's output for each of our tokens.
    """

    vocabulary: Vocabulary
    order: Sequence[int]


def read_tokens(checkpoint: Path, vocab_size: int, chosen: Path | None) -> Tokens:
    """Convert the tokenizer of a checkpoint.

    Args:
        checkpoint: file of the checkpoint.
        vocab_size: number of outputs of its head.
        chosen: file of the tokenizer; None: a file near the checkpoint.
    """
    file = chosen or _found(checkpoint)
    if not file.is_file():
        raise InputError(f"--tokenizer must be a {SUBWORDS} or {LIST} of icefall; {file} does not exist.")
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file} must have at most {MAX_BYTES:,} bytes; it has {file.stat().st_size:,}.")
    content, notes = file.read_bytes(), list[str]()
    if file.suffix == ".txt":
        content, notes = _listed(content, vocab_size, file.name)
    processor = processor_of(content)
    if processor.vocab_size() != vocab_size:
        must = f"{file.name} must have a piece for each of the {vocab_size} outputs of the checkpoint"
        raise InputError(f"{must}; {file} has {processor.vocab_size()}. Give the right one: --tokenizer FILE.")
    names = [processor.id_to_piece(number) for number in range(vocab_size)]
    unknown = processor.unk_id()
    if names[0] != BLANK_NAME or unknown < 1:
        raise InputError(f"{file.name}: piece 0 must be {BLANK_NAME}; got {shown(names[0])}.")
    order = [0, unknown, *(number for number in range(1, vocab_size) if number != unknown)]
    pieces = [_piece(number, names[number], processor) for number in order[1:]]
    model = with_blank(with_pieces(content, pieces))
    hidden = [token for token, number in enumerate(order) if token > UNKNOWN_ID and _is_hidden(number, processor)]
    config = {"name": "sentencepiece", "algorithm": algorithm(content), "vocab_size": vocab_size}
    spelling = [names[number] for token, number in enumerate(order) if token > UNKNOWN_ID and token not in hidden]
    hidden_names = [names[order[token]] for token in hidden]
    return Tokens(Vocabulary(config, {FILE: model} | hidden_files(hidden), spelling, hidden_names, notes), order)


def _found(checkpoint: Path) -> Path:
    """Find the tokenizer near a checkpoint: a SentencePiece model, or else a list."""
    for name, recipe in PLACES.items():
        for place in ("", "../", recipe, f"../{recipe}"):
            if files := sorted(checkpoint.parent.glob(f"{place}{name}")):
                return files[0]
    must = f"{SUBWORDS} or {LIST} must be beside {checkpoint.name}, in the folder above, or in data/lang_*"
    raise InputError(f"{must}; it is missing. Copy it there, or name it: --tokenizer FILE.")


def _listed(content: bytes, vocab_size: int, name: str) -> tuple[bytes, list[str]]:
    """Make a SentencePiece model of a list, and notes on it.

    All pieces have one score, so that a text is split into the fewest pieces: a list of characters has one way to split
    it. A list without a piece that begins with a space has no space before the first word.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{name} must be a text in UTF-8; it is not.") from None
    names: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        piece, _, token = line.strip().rpartition("\t" if "\t" in line else " ")
        piece = piece.strip()
        if not piece or not token.isdecimal() or int(token) in names:
            must = f"{name}:{number}: each line must have a piece, a space and a number that no other line has"
            raise InputError(f"{must}; got {shown(line)}.")
        names[int(token)] = piece
    names = {
        token: piece for token, piece in names.items() if token < vocab_size or not DISAMBIGUATION.fullmatch(piece)
    }
    if [*sorted(names)] != [*range(vocab_size)] or len({*names.values()}) < vocab_size:
        must = f"{name} must number {vocab_size} different pieces from 0, one for each output of the checkpoint"
        raise InputError(f"{must}; it has {len(names)}. Give the right one: --tokenizer FILE.")
    if UNKNOWN_NAME not in names.values():
        raise InputError(f"{name} must have the piece {UNKNOWN_NAME}; it has none.")
    pieces = [SubwordPiece(names[token], -1.0, _kind(names[token])) for token in range(vocab_size)]
    model = model_of(pieces, "unigram", b"")
    if not any(piece.name.startswith(SPACE) for piece in pieces):
        model = without_prefix(model)
    return model, [FEWEST] if any(len(piece.name) > 1 for piece in pieces if piece.type == NORMAL) else []


def _kind(name: str) -> int:
    """Return SentencePiece's type of a piece of icefall; its recipes train special pieces as user-defined."""
    return UNKNOWN if name == UNKNOWN_NAME else USER_DEFINED if name in (BLANK_NAME, BOUNDARY_NAME) else NORMAL


def _is_hidden(number: int, processor: Any) -> bool:
    return processor.id_to_piece(number) == BOUNDARY_NAME or processor.is_control(number)


def _piece(number: int, name: str, processor: Any) -> SubwordPiece:
    kind = UNKNOWN if processor.is_unknown(number) else CONTROL if _is_hidden(number, processor) else NORMAL
    return SubwordPiece(name, processor.get_score(number), kind)


def order_of(content: bytes) -> list[int]:
    """Return the number of icefall's output for each token of asr's SentencePiece model.

    The recipes have the blank first, and the unknown piece beside <sos/eos>: after it, if it is the first piece, before
    it, if it is the last. Without <sos/eos>, the unknown piece is 1.
    """
    processor = processor_of(content)
    names = [processor.id_to_piece(token) for token in range(processor.vocab_size())]
    tokens = [token for token in range(len(names)) if token != UNKNOWN_ID]
    boundary = tokens.index(names.index(BOUNDARY_NAME)) if BOUNDARY_NAME in names else 0
    tokens.insert(boundary if boundary > 1 else boundary + 1, UNKNOWN_ID)
    return sorted(range(len(tokens)), key=tokens.__getitem__)


def written_tokens(content: bytes, order: Sequence[int]) -> dict[str, bytes]:
    """Return icefall's files for asr's SentencePiece model, by name.

    Args:
        content: the model.
        order: number of icefall's output for each token.
    """
    processor = processor_of(content)
    pieces = {}
    for token, number in enumerate(order):
        name = BLANK_NAME if token == 0 else processor.id_to_piece(token)
        kind = UNKNOWN if processor.is_unknown(token) else _kind(name)
        pieces[number] = SubwordPiece(name, processor.get_score(token), kind)
    in_order = [pieces[number] for number in sorted(pieces)]
    listed = "".join(f"{piece.name} {number}\n" for number, piece in enumerate(in_order))
    return {SUBWORDS: with_pieces(content, in_order), LIST: listed.encode()}
