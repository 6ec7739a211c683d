"""Pieces of a SentencePiece model as bytes: fields of a protobuf message.

If messages are concatenated, the values of a repeated field, such as the pieces, are appended in order.
"""

import struct
from typing import NamedTuple

PIECES = 1  # number of the field of a SentencePiece model that contains a piece
# SentencePiece's numbers for types of pieces: control pieces never occur in texts, user-defined pieces are never split.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


class SubwordPiece(NamedTuple):
    """A piece of a SentencePiece model: its name, its score (a higher one is preferred), and its type."""

    name: str
    score: float
    type: int


def piece_field(piece: SubwordPiece) -> bytes:
    """Encode a piece as a field of a model; appended to a model's bytes, it is the last piece."""
    score = _encoded(2 << 3 | 5) + struct.pack("<f", piece.score)
    return written(PIECES, written(1, piece.name.encode()) + score + written(3, piece.type))


def _encoded(number: int) -> bytes:
    """Encode a number as a varint; negative numbers have 64 bits."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def written(number: int, value: int | bytes) -> bytes:
    """Encode a field of a protobuf message."""
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value)
    return _encoded(number << 3 | 2) + _encoded(len(value)) + value
