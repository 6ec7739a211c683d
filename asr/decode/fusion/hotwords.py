"""Hotwords: phrases that a beam search is drawn to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from asr.errors import InputError
from asr.interfaces import Hotwords, Tokenizer
from asr.system.files import bounded_lines

LONGEST_PHRASE = 1000  # characters; names and terms have some ten
MOST_CHARACTERS = 1_000_000  # of all phrases, of which each takes 0.3 kB: tens of thousands of names


class _Node:
    """A beginning that phrases share."""

    __slots__ = ("after", "bonus", "is_whole", "words")

    def __init__(self) -> None:
        self.after: dict[str, _Node] = {}
        self.bonus = 0.0  # of a phrase through here, in proportion to the part that is spelled; the largest
        self.words = 0  # that have begun up to here
        self.is_whole = False  # a phrase ends here


class Match(NamedTuple):
    """How far a hypothesis has come in the tree, and what it was given for good for the words of that way."""

    node: _Node
    paid: float


class Matches(NamedTuple):
    """Where a hypothesis is in the midst of phrases, one for each word they began at, and the bonus on approval.

    The phrase that began first comes first.
    """

    open: tuple[Match, ...] = ()
    bonus: float = 0.0


NOWHERE = Matches()


class Phrases:
    """Phrases as a tree of characters.

    A phrase is worth `score` for each of its words; a word of several phrases counts once. A hypothesis that begins a
    phrase, at the beginning of a word, is given the bonus character by character, and loses it again where it departs:
    so what is being spelled stays in the beam. Only a phrase that ends at the end of a word is paid for.

    Args:
        phrases: normalised; words parted by single spaces.
        score: bonus for each word of a phrase (natural logarithm).
    """

    def __init__(self, phrases: Iterable[str], score: float) -> None:
        self._root = _Node()
        self._score = score
        self.most = 0.0  # that a word is worth which ends a phrase
        self.words: set[str] = set()
        for phrase in phrases:
            self._add(phrase)
            self.words.update(phrase.split())

    def _add(self, phrase: str) -> None:
        node, words = self._root, 0
        whole = self._score * len(phrase.split())
        self.most = max(self.most, whole)
        for number, (before, character) in enumerate(pairwise(f" {phrase}"), start=1):
            node = node.after.setdefault(character, _Node())
            node.bonus = max(node.bonus, whole * number / len(phrase))
            words += before.isspace() and not character.isspace()
            node.words = words
        node.is_whole = True

    def spell(self, matches: Matches, part: str, *, begins_word: bool) -> tuple[Matches, float]:
        """Follow a hypothesis by characters of a word; return where it is now, and what it gains."""
        still_open = matches.open
        if begins_word and part[0] in self._root.after:
            still_open = (*still_open, Match(self._root, 0.0))
        if not still_open:  # as nearly always
            return NOWHERE, 0.0
        after = Matches(still_open)
        for character in part:
            after = _follow(after.open, character)
        return after, after.bonus - matches.bonus

    def end_word(self, matches: Matches) -> tuple[Matches, float]:
        """Follow a hypothesis to the end of a word."""
        if not matches.open:
            return matches, 0.0
        still_open, earned = matches.open, 0.0
        ended = next((match for match in matches.open if match.node.is_whole), None)  # the longest
        if ended is not None:
            earned = self._score * ended.node.words - ended.paid
            still_open = tuple(Match(node, min(paid + earned, self._score * node.words)) for node, paid in still_open)
        after = _follow(still_open, " ")
        return after, earned + after.bonus - matches.bonus


def _follow(matches: Iterable[Match], character: str) -> Matches:
    still_open = [Match(node.after[character], paid) for node, paid in matches if character in node.after]
    if not still_open:
        return NOWHERE
    return Matches(tuple(still_open), max(0.0, *(node.bonus - paid for node, paid in still_open)))


def read_phrases(path: str, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> Hotwords:
    """Read hotwords; return those that can be written, normalised, and why the others cannot.

    Raises:
        InputError: the file cannot be read, is not text, or is empty.
    """
    phrases: dict[str, None] = {}
    impossible: dict[str, str] = {}
    for line in _lines(path):
        phrase = normalize(line)
        if not line.strip():
            continue
        try:
            tokenizer.encode(phrase)
        except InputError as error:
            impossible[line.strip()] = str(error)
            continue
        if phrase:
            phrases[phrase] = None
        else:
            impossible[line.strip()] = "nothing is left of it when it is normalised"
    if not phrases and not impossible:
        raise InputError(f"{path}: hotwords must be phrases, one a line; the file holds none.")
    return Hotwords(list(phrases), impossible)


def _lines(path: str) -> Iterator[str]:
    characters = 0
    try:
        with open(path, encoding="utf-8") as file:
            for where, line in bounded_lines(file.readline, LONGEST_PHRASE, path):
                characters += len(line)
                if characters > MOST_CHARACTERS:
                    must = f"{where}: hotwords must have at most {MOST_CHARACTERS:,} characters in all"
                    raise InputError(f"{must}; up to here they have more.")
                yield line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error.reason})"
        raise InputError(f"{path}: hotwords must be a text file, a phrase a line; {reason}.") from None
