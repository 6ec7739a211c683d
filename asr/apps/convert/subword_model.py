"""SentencePiece models as bytes: read, changed and written without training.

A model is a protobuf message. Concatenated messages merge into one. The values of a repeated field, such as field 1
(the pieces), are appended in order. If any other setting, such as a training setting in field 2, is repeated, its last
value counts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sentencepiece

from asr.components.tokenizer.sentencepiece import FILE
from asr.components.tokenizer.subword_pieces import CONTROL, PIECES, SubwordPiece, piece_field, written
from asr.errors import InputError, shown

TRAINER, NORMALIZER = 2, 3  # numbers of the fields of a SentencePiece model
MODEL_TYPE = 3  # number of a field of the message TRAINER
CHARSMAP, ADD_DUMMY_PREFIX = 2, 3  # fields of the message NORMALIZER: replacements of characters, compiled; a space
ALGORITHMS = {1: "unigram", 2: "bpe"}  # SentencePiece's numbers for its algorithms
BLANK = "<blank>"


class _Field(NamedTuple):
    """A field of a protobuf message; its bytes from `begin` to `end` include the tag before the value."""

    number: int
    value: int | bytes
    begin: int
    end: int


def with_blank(model: bytes) -> bytes:
    """Insert the blank before a model's pieces."""
    return _BLANK_PIECE + model + _OF_OURS


def without_blank(model: bytes) -> bytes:
    """Remove the first piece, the blank, from a model."""
    blank = next(field for field in _fields(model) if field.number == PIECES)
    rest = model[: blank.begin] + model[blank.end :]
    return rest.removesuffix(_OF_OURS) if rest.endswith(_OF_OURS) else rest + _OF_NEMO


def algorithm(model: bytes) -> str:
    """Return how a model was trained: "unigram", which is SentencePiece's default, or "bpe"."""
    number: int | bytes = 1
    for trainer in _fields(model):
        if trainer.number == TRAINER and isinstance(trainer.value, bytes):
            number = next((f.value for f in _fields(trainer.value) if f.number == MODEL_TYPE), number)
    if number not in ALGORITHMS:
        raise InputError(f"{FILE} must be a SentencePiece model of kind unigram or bpe; got kind {shown(number)}.")
    return ALGORITHMS[int(number)]


def model_of(pieces: Sequence[SubwordPiece], algorithm: str, charsmap: bytes) -> bytes:
    """Write a SentencePiece model that begins with the unknown piece and normalises texts with `charsmap`."""
    [number] = [number for number, name in ALGORITHMS.items() if name == algorithm]
    trainer = written(TRAINER, written(MODEL_TYPE, number)) + _OF_NEMO
    normalizer = written(NORMALIZER, written(CHARSMAP, charsmap)) if charsmap else b""
    return b"".join(map(piece_field, pieces)) + trainer + normalizer


def with_pieces(model: bytes, pieces: Sequence[SubwordPiece]) -> bytes:
    """Replace the pieces of a model; how it splits and normalises texts remains."""
    rest = b"".join(model[field.begin : field.end] for field in _fields(model) if field.number != PIECES)
    return b"".join(map(piece_field, pieces)) + rest + _OF_NEMO


def without_prefix(model: bytes) -> bytes:
    """Change a model so that it does not begin texts with a space."""
    return model + written(NORMALIZER, written(ADD_DUMMY_PREFIX, 0))


def charsmap(model: bytes) -> bytes:
    """Return the compiled replacements of characters by which a model normalises texts; b"" if there are none."""
    compiled = b""
    for normalizer in _fields(model):
        if normalizer.number == NORMALIZER and isinstance(normalizer.value, bytes):
            compiled = next(
                (f.value for f in _fields(normalizer.value) if f.number == CHARSMAP and isinstance(f.value, bytes)),
                compiled,
            )
    return compiled


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Load a model."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
    except RuntimeError:
        raise InputError(f"{FILE} must be a SentencePiece model; it is damaged.") from None
    return processor


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields of a protobuf message."""
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


def _special(unknown: int, blank: int) -> bytes:
    """Encode the training settings that name the special pieces: unk_id, bos_id, eos_id, pad_id and pad_piece."""
    ids = {40: unknown, 41: -1, 42: -1, 43: blank}
    settings = b"".join(written(field, number) for field, number in ids.items())
    return written(TRAINER, settings + (written(48, BLANK.encode()) if blank >= 0 else b""))


_BLANK_PIECE = piece_field(SubwordPiece(BLANK, 0.0, CONTROL))
_OF_OURS, _OF_NEMO = _special(unknown=1, blank=0), _special(unknown=0, blank=-1)
