"""Pieces that are appended to a fitted tokenizer, for characters that it cannot spell.

Each appended piece has such a character, so texts without these characters are encoded as before; or it is a hidden
piece, with which `asr.core.data.dataset.Reference` ends texts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial

from asr.base.text.hidden_pieces import ENDS
from asr.base.text.printable import listed
from asr.errors import InputError, shown
from asr.interfaces import Tokenizer

MAX_PIECE = 100  # maximum number of characters of an appended piece
WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # begins a piece that begins a word, as SentencePiece writes it


def pieces_for(texts: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return pieces for the characters of texts that a tokenizer cannot spell, in code point order.

    A character is a piece. If the tokenizer has pieces that begin a word, then a character that begins a word is also
    such a piece: a space and the character. If it takes pieces of several characters, then the pieces that spell a word
    in lower case are appended as the word writes them, so that the word is cut as before: " How" beside " how".
    """
    characters, initials, cased = set[str](), set[str](), set[str]()
    for text in texts:
        characters.update(text)
        words = text.split()
        initials.update(word[0] for word in words)
        cased.update(word for word in words if word != word.lower())
    new = {character for character in characters if not character.isspace() and not spells(tokenizer.encode, character)}
    begins_words = any(len(name) > 1 and name[0] == " " for name in tokenizer.names)
    pieces = new | {f" {character}" for character in new & initials if begins_words}
    if tokenizer.takes_words:
        is_spelled = cache(partial(spells, tokenizer.encode))
        written = {piece for word in cased for piece in _as_written(word, tokenizer, is_spelled)}
        pieces |= {piece for piece in written if new & set(piece)}
    return sorted(pieces)


def _as_written(word: str, tokenizer: Tokenizer, is_spelled: Callable[[str], bool]) -> Iterator[str]:
    """Yield the pieces that spell a word in lower case, as the word writes them; marks within the word part it."""
    lower = word.lower()
    if len(lower) != len(word):  # as with a dotted capital I
        return
    for run in re.finditer(r"\S+", "".join(letter if is_spelled(letter) else " " for letter in lower)):
        names = [tokenizer.names[token] for token in tokenizer.encode(run[0])]
        written, end = f" {word[run.start() : run.end()]}", 0
        if "".join(names) == f" {run[0]}":
            for name in names:
                piece, end = written[end : end + len(name)], end + len(name)
                yield piece.lstrip() if run.start() > 0 else piece


def checked_pieces(given: Sequence[str], tokenizer: Tokenizer, setting: str) -> list[str]:
    """Check pieces that a user names, and return them as a tokenizer's names: a space for `WORD_START`.

    Args:
        given: the pieces.
        tokenizer: the tokenizer to which they are appended.
        setting: name of the setting that contains the pieces, for errors.
    """
    pieces = [f" {piece[1:]}" if piece.startswith(WORD_START) else piece for piece in given]
    for piece, name in zip(given, pieces, strict=True):
        text = name[1:] if name.startswith(" ") and piece.startswith(WORD_START) else name
        if not text or len(text) > MAX_PIECE or any(character.isspace() for character in text) or WORD_START in text:
            must = f"{setting} must have pieces of 1 to {MAX_PIECE} characters without spaces"
            raise InputError(f"{must}; got {shown(piece)}. {WORD_START} at its beginning begins a word.")
        if name in tokenizer.names if name in ENDS else all(spells(tokenizer.encode, each) for each in text):
            must = f"{setting} must have pieces with a character that the model cannot spell"
            raise InputError(f"{must}; it spells {shown(piece)} already. Leave it out.")
    if repeated := [piece for piece in dict.fromkeys(given) if given.count(piece) > 1]:
        raise InputError(f"{setting} must have each piece once; got {listed(repeated)} several times.")
    return pieces


def spells(encode: Callable[[str], object], text: str) -> bool:
    """Return whether a tokenizer's `encode` covers a text."""
    try:
        encode(text)
    except InputError:
        return False
    return True
