"""Tokens to words: which tokens spell which."""

from collections.abc import Sequence
from typing import NamedTuple


class Spelt(NamedTuple):
    """A word, and the tokens that spell it: positions `first` to `last`, both among them."""

    text: str
    first: int
    last: int


def spell(tokens: Sequence[int], pieces: Sequence[str]) -> list[Spelt]:
    """Put the pieces together and part them at spaces.

    Args:
        tokens: ids.
        pieces: what each id spells.
    """
    words: list[Spelt] = []
    word, first, last = "", 0, 0
    for position, token in enumerate(tokens):
        for character in pieces[token]:
            if not character.isspace():
                word, first, last = word + character, first if word else position, position
            elif word:
                words.append(Spelt(word, first, last))
                word = ""
    return [*words, Spelt(word, first, last)] if word else words
