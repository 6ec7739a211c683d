"""Map tokens to the words that they spell."""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

BYTE = re.compile("[\udc80-\udcff]")  # a byte of a longer character, written by `piece_of`


class Spelt(NamedTuple):
    """A word and the tokens that spell it.

    Args:
        text: the word.
        first: position of its first token.
        last: position of its last token.
        tail: number of its characters that the last token spells.
    """

    text: str
    first: int
    last: int
    tail: int


def spell(tokens: Sequence[int], pieces: Sequence[str]) -> list[Spelt]:
    """Join the pieces and split them into words at spaces.

    Args:
        tokens: ids.
        pieces: the text of each id; a byte of a longer character is written by `piece_of`.
    """
    words: list[Spelt] = []
    word, first, last, tail = "", 0, 0, 0
    for character, begin, index in _characters(tokens, pieces):
        if not character.isspace():
            tail = tail + 1 if word and last == index else 1
            word, first, last = word + character, first if word else begin, index
        elif word:
            words.append(Spelt(word, first, last, tail))
            word = ""
    return [*words, Spelt(word, first, last, tail)] if word else words


def text_of(tokens: Iterable[int], pieces: Sequence[str]) -> str:
    """Return the words that tokens spell, separated by single spaces."""
    return " ".join(word.text for word in spell([*tokens], pieces))


def spell_characters(tokens: Iterable[int], pieces: Sequence[str]) -> bool:
    """Whether each token spells characters, as beam search needs; a byte and a hidden piece do not."""
    return all(pieces[token] and not BYTE.search(pieces[token]) for token in tokens)


def piece_of(spelt: bytes) -> str:
    """Return the text of a token that spells bytes of UTF-8.

    A byte of a character that the token does not spell whole is a lone surrogate, as of `surrogateescape`.
    """
    return spelt.decode(errors="surrogateescape")


def joined_bytes(text: str) -> str:
    """Return a concatenation of pieces in which bytes that together spell a character are this character."""
    return piece_of(text.encode(errors="surrogateescape"))


def _characters(tokens: Sequence[int], pieces: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each character and the positions of the first and the last token that spell it."""
    decoder, begin = codecs.getincrementaldecoder("utf-8")("replace"), 0
    for index, token in enumerate(tokens):
        if not decoder.getstate()[0]:  # no character is unfinished
            begin = index
        for character in decoder.decode(pieces[token].encode(errors="surrogateescape")):
            yield character, begin, index
            begin = index
    for character in decoder.decode(b"", final=True):
        yield character, begin, len(tokens) - 1
