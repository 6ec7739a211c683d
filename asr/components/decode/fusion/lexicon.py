"""Lexicon: the words that a beam search may output."""

import io
import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from asr.base.language_model.arpa import HEAD_BYTES, MAX_VOCABULARY, MAX_WORD_BYTES, is_arpa, read_words
from asr.base.language_model.kenlm import NOT_WORDS
from asr.base.system.files import bounded_lines
from asr.base.text.words import spell_characters
from asr.errors import InputError, shown
from asr.interfaces import Tokenizer

MAX_LINE_BYTES = 10_000  # maximum length of a line with a word and its spelling or pronunciation
LONG = 40  # characters; longer prefixes are looked up by bisection

logger = logging.getLogger(__name__)


class Words:
    """A set of words and of all their prefixes."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        short = frozenset(word[:end] for word in self._words for end in range(1, min(len(word), LONG) + 1))
        long = sorted(word for word in self._words if len(word) > LONG)
        self.beginnings: Container[str] = _Beginnings(short, long) if long else short

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)


class AnyOf:
    """The union of several sets of words."""

    def __init__(self, sets: "Sequence[Words | AnyOf]") -> None:
        self._sets = sets
        self.beginnings: Container[str] = _AnyBeginning(sets)

    def __contains__(self, word: str) -> bool:
        return any(word in words for words in self._sets)


class _AnyBeginning:
    def __init__(self, sets: Sequence[Words | AnyOf]) -> None:
        self._beginnings = [words.beginnings for words in sets]

    def __contains__(self, beginning: object) -> bool:
        return any(beginning in beginnings for beginnings in self._beginnings)


class _Beginnings:
    """All prefixes of words; long prefixes are not stored, because memory would grow with the square of word length.

    Args:
        short: all prefixes of at most LONG characters.
        long: sorted words with more characters. Bisection finds the first word that is not less than a prefix; if any
            word begins with the prefix, this word does.
    """

    def __init__(self, short: frozenset[str], long: Sequence[str]) -> None:
        self._short = short
        self._long = long

    def __contains__(self, beginning: object) -> bool:
        if beginning in self._short:
            return True
        if not isinstance(beginning, str) or len(beginning) <= LONG:
            return False
        index = bisect_left(self._long, beginning)
        return index < len(self._long) and self._long[index].startswith(beginning)


def read_lexicon(path: str | Path) -> list[str]:
    """Read the words of a lexicon: the first entry of each line, or the words of an ARPA file.

    Further entries of a line, such as a pronunciation, are ignored; the number of these lines is logged.

    Raises:
        InputError: the file cannot be read, is not text, or has no word.
    """
    try:
        with io.BufferedReader(io.FileIO(path), HEAD_BYTES) as file:
            words = read_words(file, only_words=True) if is_arpa(file.peek()) else _first_words(file, path)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, UnicodeDecodeError):
            reason = f"it is not UTF-8 text ({error.reason})"
        raise InputError(
            f"{path}: a lexicon must be a text file with one word per line, or an ARPA file; {reason}."
        ) from None
    words = [word for word in words if word not in NOT_WORDS]
    if not words:
        raise InputError(f"{path}: a lexicon must have words; it has none.")
    return words


def writable(path: str, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> list[str]:
    """Read a lexicon; return its normalised words that the tokenizer covers, and log the number of other words.

    Raises:
        InputError: the lexicon cannot be used, or the tokenizer covers none of its words.
    """
    words: list[str] = []
    impossible: list[str] = []
    for word in read_lexicon(path):
        try:
            is_covered = spell_characters(tokenizer.encode(normalize(word)), tokenizer.pieces)
        except InputError:
            is_covered = False
        if is_covered:
            words += normalize(word).split()
        else:
            impossible.append(word)
    if not words:
        must = "a lexicon must have words that the tokenizer covers"
        raise InputError(f"{path}: {must}; words covered: 0 of {len(impossible)}.")
    if impossible:
        shown = ", ".join(impossible[:3])
        logger.warning("%s: the tokenizer does not cover %d of the words: %s, …", path, len(impossible), shown)
    return words


def _first_words(file: BinaryIO, path: str | Path) -> list[str]:
    words: list[str] = []
    longer: list[str] = []  # first entries of the lines that have further entries
    text = io.TextIOWrapper(file, encoding="utf-8")
    for where, line in bounded_lines(text.readline, MAX_LINE_BYTES, str(path)):
        if "\0" in line:
            raise ValueError("it has a null byte, so it is not text")
        first, *rest = line.split(maxsplit=1) or [""]
        if not first:
            continue
        if len(first.encode()) > MAX_WORD_BYTES:
            raise InputError(f"{where}: a word must have at most {MAX_WORD_BYTES:,} bytes; got {shown(first)}.")
        words.append(first)
        longer += [first] if rest else []
        if len(words) > MAX_VOCABULARY:
            raise InputError(f"{where}: a lexicon must have at most {MAX_VOCABULARY:,} words; this one has more.")
    if longer:
        message = f"{len(longer):,} of {len(words):,} lines have more than one entry; only the first entry is used"
        logger.warning("%s: %s (first such line: %s)", path, message, shown(longer[0]))
    return words
