"""Map tokens to the words that they spell."""

from collections.abc import Sequence
from typing import NamedTuple


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
        pieces: the text of each id.
    """
    words: list[Spelt] = []
    word, first, last, tail = "", 0, 0, 0
    for index, token in enumerate(tokens):
        for character in pieces[token]:
            if not character.isspace():
                tail = tail + 1 if word and last == index else 1
                word, first, last = word + character, first if word else index, index
            elif word:
                words.append(Spelt(word, first, last, tail))
                word = ""
    return [*words, Spelt(word, first, last, tail)] if word else words
