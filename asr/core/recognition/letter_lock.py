"""A lock on letters: a model's head is restricted to tokens with the letters of a language or script."""

import torch

from asr.base.text.alphabets import Alphabet, find_alphabet, letters_of, units
from asr.base.text.hidden_pieces import LANGUAGE_TAG
from asr.base.text.words import BYTE
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Head, Tokenizer


def lock(head: Head, tokenizer: Tokenizer, characters: str) -> None:
    """Let the searches of a head, on the CPU, write only the letters of a language or of a script.

    Args:
        head: any head that can be restricted.
        tokenizer: its pieces are the texts of the tokens.
        characters: name of the language or of the script, as for `asr.base.text.alphabets.find_alphabet`.
    """
    restrict = getattr(head, "restrict", None)  # heads of older plugins lack it
    if restrict is None:
        must = "characters needs a head that can be restricted to tokens (Head.restrict of asr/interfaces.py)"
        raise InputError(f"{must}; {type(head).__name__} cannot. Leave out characters.")
    alphabet = find_alphabet(characters)
    allowed = allowed_tokens(tokenizer, alphabet)
    pieces = [piece for piece, is_allowed in zip(tokenizer.pieces, allowed, strict=True) if is_allowed]
    written = alphabet.base & units(letter for piece in pieces for letter in letters_of(piece))
    if 2 * len(written) < len(alphabet.base):
        must = "characters must be a language or script of which the model's tokens write at least half of the letters"
        given = f"{characters}, of whose {len(alphabet.base):,} letters they write {len(written):,}"
        raise InputError(f"{must}; got {given}. Choose the language or script of the model's texts.")
    restrict(torch.tensor(allowed))


def allowed_tokens(tokenizer: Tokenizer, alphabet: Alphabet) -> list[bool]:
    """Return whether each token may be written, (V,).

    Digits, punctuation, spaces, marks and the blank may. A byte of a longer character may not, because it can be part
    of any letter. Hidden pieces may not, except the language tags that a transcript's language is read from.
    """
    return [
        token == BLANK_ID or (_is_written(piece, alphabet) if piece else LANGUAGE_TAG.fullmatch(name) is not None)
        for token, (piece, name) in enumerate(zip(tokenizer.pieces, tokenizer.names, strict=True))
    ]


def _is_written(piece: str, alphabet: Alphabet) -> bool:
    return not BYTE.search(piece) and all(map(alphabet.has, letters_of(piece)))
