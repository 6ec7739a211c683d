"""Characters as tokens."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from asr.base.system.learnt import from_json, to_json
from asr.base.text.hidden_pieces import ENDS
from asr.base.text.words import text_of
from asr.errors import InputError, shown

FILE = "characters.json"


class Char:
    """One token per character, including the space; ids start at 1, since 0 is CTC's blank.

    The appended pieces <EOU> and <EOB> are names of hidden pieces, which separate words as a space does.
    """

    piece_scores: Mapping[str, float] = MappingProxyType({})

    def __init__(self) -> None:
        self._characters: list[str] = []
        self._ids: dict[str, int] = {}

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the blank."""
        return len(self._characters) + 1

    @property
    def pieces(self) -> list[str]:
        """The text of each id; "" for the blank."""
        return ["", *(" " if name in ENDS else name for name in self._characters)]

    @property
    def names(self) -> list[str]:
        """The name of each id, which is its text, or the name of a hidden piece."""
        return ["", *self._characters]

    def fit(self, texts: Iterable[str]) -> None:
        """Make every character that occurs in `texts` a token, in code point order."""
        self._set(sorted(set().union(*texts)))

    def encode(self, text: str) -> list[int]:
        """Return the token of each character.

        Raises:
            InputError: a character is not in the training text; the message names the character.
        """
        for character in text:
            if character not in self._ids:
                raise InputError(f"the tokenizer must cover every character; {character!r} is not in the training text")
        return [self._ids[character] for character in text]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; leading, trailing and repeated spaces, which CTC may emit, are removed."""
        return text_of(tokens, self.pieces)

    def files(self) -> dict[str, bytes]:
        """Return the fitted tokenizer as the files that a bundle stores."""
        return to_json(FILE, self._characters)

    def load(self, files: dict[str, bytes]) -> None:
        """Restore the tokenizer from the output of `files`.

        Raises:
            InputError: a file is damaged.
        """
        characters = from_json(files, FILE)
        must = f"{FILE} must be a list of different characters"
        if not isinstance(characters, list):
            raise InputError(f"{must}; got {shown(characters)}.")
        for character in characters:
            if not isinstance(character, str) or (len(character) != 1 and character not in ENDS):
                raise InputError(f"{must}; got {shown(character)}.")
        if len(set(characters)) < len(characters):
            raise InputError(f"{must}; {len(characters) - len(set(characters))} are repeated.")
        self._set(characters)

    @property
    def takes_words(self) -> bool:
        """False: `extend` takes single characters."""
        return False

    def extend(self, pieces: Sequence[str]) -> None:
        """Append characters or the names of hidden pieces, with the next ids.

        Raises:
            InputError: a piece has several characters.
        """
        for piece in pieces:
            if len(piece) != 1 and piece not in ENDS:
                raise InputError(f"a tokenizer of characters can be extended by characters only; got {shown(piece)}.")
        self._set([*self._characters, *pieces])

    def _set(self, characters: list[str]) -> None:
        self._characters = characters
        self._ids = {character: number for number, character in enumerate(characters, start=1)}
