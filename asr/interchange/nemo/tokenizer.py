"""Conversion between NVIDIA NeMo's tokenizers and asr's. NeMo's blank is CTC's last output, asr's blank is piece 0.

A SentencePiece model is a protobuf message. Concatenated messages merge into one. The values of a repeated field, such
as field 1 (the pieces), are appended in order. If any other setting, such as a training setting in field 2, is
repeated, its last value counts.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from asr.errors import InputError, shown
from asr.interchange.foreign import Vocabulary
from asr.interchange.nemo.archive import HASHED, hashed, tokenizer_file
from asr.interchange.nemo_files import TOKENIZER, VOCABULARY
from asr.system.learnt import to_json
from asr.tokenizer import char
from asr.tokenizer.sentencepiece import FILE

PIECES, TRAINER = 1, 2  # numbers of the fields of a SentencePiece model
MODEL_TYPE = 3  # number of a field of the message TRAINER
ALGORITHMS = {1: "unigram", 2: "bpe"}  # SentencePiece's numbers for its algorithms
BLANK = "<blank>"


class _Field(NamedTuple):
    """A field of a protobuf message; its bytes from `begin` to `end` include the tag before the value."""

    number: int
    value: int | bytes
    begin: int
    end: int


def take_vocabulary(
    nemo: Mapping[str, Any], head: Mapping[str, Any], files: dict[str, bytes], path: Path
) -> Vocabulary:
    """Convert NeMo's tokenizer: SentencePiece's pieces, or characters if the model has no tokenizer.

    Raises:
        InputError: asr does not support the tokenizer, or it differs from the head's vocabulary.
    """
    section = nemo.get("tokenizer")
    listed = head.get("vocabulary") or nemo.get("labels")
    if section is None:
        if not isinstance(listed, list) or not all(isinstance(label, str) for label in listed):
            raise InputError(f"labels must be a list of characters if there is no tokenizer; got {shown(listed)}.")
        learnt = to_json(char.FILE, listed)
        char.Char().load(learnt)
        return Vocabulary({"name": "char"}, learnt, list(listed))
    if not isinstance(section, dict) or section.get("type") != "bpe" or section.get("custom_tokenizer"):
        given = section.get("type") if isinstance(section, dict) else section
        raise InputError(f"tokenizer.type must be bpe, a SentencePiece model, which asr supports; got {shown(given)}.")
    model = tokenizer_file(files, section.get("model_path"), path)
    names = pieces(model)
    if isinstance(listed, list) and listed and listed != names:
        both = zip([*listed, None], [*names, None], strict=False)
        number, (wanted, actual) = next((number, pair) for number, pair in enumerate(both) if pair[0] != pair[1])
        must = f"piece {number} of the tokenizer must be the vocabulary's {shown(wanted)}"
        raise InputError(f"{must}; got {shown(actual)}.")
    learnt = {FILE: with_blank(model)}
    config = {"name": "sentencepiece", "algorithm": algorithm(model), "vocab_size": len(names) + 1}
    return Vocabulary(config, learnt, names[1:])


def give_vocabulary(
    learnt: Mapping[str, bytes], pieces_with_blank: Sequence[str]
) -> tuple[list[str], dict[str, str], list[tuple[str, bytes]]]:
    """Convert asr's tokenizer to NeMo's; return the pieces, the section of the config, and the files by name.

    Args:
        learnt: files of asr's tokenizer.
        pieces_with_blank: text of each id.
    """
    if FILE not in learnt:  # the tokens are characters
        return list(pieces_with_blank[1:]), {}, []
    model = without_blank(learnt[FILE])
    names = pieces(model)
    listed = "".join(f"{name}\n" for name in names[1:]).encode()
    files = [(hashed(VOCABULARY, listed), listed), (hashed(TOKENIZER, model), model)]
    section = {"dir": ".", "type": "bpe", "vocab_path": HASHED + files[0][0], "model_path": HASHED + files[1][0]}
    return names, section, files


def with_blank(model: bytes) -> bytes:
    """Insert the blank before a model's pieces."""
    return _BLANK_PIECE + model + _OF_OURS


def without_blank(model: bytes) -> bytes:
    """Remove the first piece, the blank, from a model."""
    blank = next(field for field in _fields(model) if field.number == PIECES)
    rest = model[: blank.begin] + model[blank.end :]
    return rest.removesuffix(_OF_OURS) if rest.endswith(_OF_OURS) else rest + _OF_NEMO


def algorithm(model: bytes) -> str:
    """Return how a model was trained: "unigram", which is SentencePiece's default, or "bpe".

    Raises:
        InputError: the model is damaged, or is neither unigram nor BPE.
    """
    number: int | bytes = 1
    for trainer in _fields(model):
        if trainer.number == TRAINER and isinstance(trainer.value, bytes):
            number = next((f.value for f in _fields(trainer.value) if f.number == MODEL_TYPE), number)
    if number not in ALGORITHMS:
        raise InputError(f"{FILE} must be a SentencePiece model of kind unigram or bpe; got kind {shown(number)}.")
    return ALGORITHMS[int(number)]


def pieces(model: bytes) -> list[str]:
    """List the pieces of a model without blank, in SentencePiece's notation.

    Raises:
        InputError: the model is damaged, a piece spells no text, or piece 0 is not the unknown piece.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError:
        raise InputError(f"{FILE} must be a SentencePiece model; it is damaged.") from None
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    if not names or not processor.is_unknown(0):
        raise InputError(f"{FILE}: piece 0 must be the unknown piece; got {shown(names[:1])}.")
    for number, name in enumerate(names):
        if processor.is_control(number) or processor.is_byte(number) or name == BLANK:
            raise InputError(f"{FILE}: pieces must spell text; {shown(name)} is a control or a byte piece.")
    return names


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields of a protobuf message.

    Raises:
        InputError: the bytes are not a protobuf message.
    """
    at = 0
    try:
        while at < len(message):
            begin = at
            tag, at = _varint(message, at)
            number, kind = tag >> 3, tag & 7
            value: int | bytes
            if kind == 0:
                value, at = _varint(message, at)
            else:
                size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
                value, at = message[at : at + size], at + size
            if at > len(message):
                raise IndexError
            yield _Field(number, value, begin, at)
    except LookupError:
        raise InputError(f"{FILE} must be a SentencePiece model; it is damaged.") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Read a number of at most ten bytes at a position; return the number and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError


def _encoded(number: int) -> bytes:
    """Encode a number as a varint; negative numbers have 64 bits."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _written(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protobuf message."""
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value)
    return _encoded(number << 3 | 2) + _encoded(len(value)) + value


def _special(unknown: int, blank: int) -> bytes:
    """Encode the training settings that name the special pieces: unk_id, bos_id, eos_id, pad_id and pad_piece."""
    ids = {40: unknown, 41: -1, 42: -1, 43: blank}
    settings = b"".join(_written(field, number) for field, number in ids.items())
    return _written(TRAINER, settings + (_written(48, BLANK.encode()) if blank >= 0 else b""))


CONTROL = 3  # SentencePiece's number for pieces that do not spell text
_BLANK_PIECE = _written(
    PIECES, _written(1, BLANK.encode()) + _encoded(2 << 3 | 5) + struct.pack("<f", 0.0) + _written(3, CONTROL)
)
_OF_OURS, _OF_NEMO = _special(unknown=1, blank=0), _special(unknown=0, blank=-1)
