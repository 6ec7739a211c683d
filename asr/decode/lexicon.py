"""The words that a beam search may write."""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from asr.decode.kenlm import ARPA_HEAD, NOT_WORDS, vocabulary
from asr.errors import InputError


class Words:
    """A set of words that knows their beginnings."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(set(words))
        self._set = frozenset(self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __contains__(self, word: str) -> bool:
        return word in self._set

    def has_beginning(self, beginning: str) -> bool:
        """Tell whether a word begins so."""
        at = bisect_left(self._words, beginning)
        return at < len(self._words) and self._words[at].startswith(beginning)


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


def _lines(path: str | Path) -> list[str]:
    return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
