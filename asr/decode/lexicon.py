"""The words that a beam search may write."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from asr.decode.kenlm import ARPA_HEAD, NOT_WORDS, vocabulary
from asr.errors import InputError
from asr.interfaces import Tokenizer

logger = logging.getLogger(__name__)


class Words:
    """A set of words, and of all their beginnings."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self.beginnings = frozenset(word[:end] for word in self._words for end in range(1, len(word) + 1))

    def __contains__(self, word: str) -> bool:
        return word in self._words


def read_lexicon(path: str | Path) -> list[str]:
    """Read the words of a lexicon: the first entry of each line, whatever stands behind it; or those of an ARPA file.

    Raises:
        InputError: it cannot be read, is not text, or holds no word.
    """
    try:
        with open(path, "rb") as file:
            is_arpa = ARPA_HEAD in file.read(64)
        words = vocabulary(path) if is_arpa else [line.split()[0] for line in _lines(path)]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error.reason})"
        raise InputError(f"{path}: a lexicon must be a text file, a word a line; {reason}.") from None
    words = [word for word in words if word not in NOT_WORDS]
    if not words:
        raise InputError(f"{path}: a lexicon must hold words; it holds none.")
    return words


def writable(path: str, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> list[str]:
    """Read a lexicon; return its words, normalised, that the tokenizer can spell, and say how many it cannot.

    Raises:
        InputError: it cannot be used, or the tokenizer can spell none.
    """
    words: list[str] = []
    impossible: list[str] = []
    for word in read_lexicon(path):
        try:
            tokenizer.encode(normalize(word))
            words += normalize(word).split()
        except InputError:
            impossible.append(word)
    if not words:
        raise InputError(f"{path}: a lexicon must hold words the tokenizer can spell; of {len(impossible)}, none.")
    if impossible:
        shown = ", ".join(impossible[:3])
        logger.warning("%s: %d of its words cannot be spelled by the tokenizer: %s, …", path, len(impossible), shown)
    return words


def _lines(path: str | Path) -> list[str]:
    return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
