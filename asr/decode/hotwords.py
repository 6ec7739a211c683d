"""Hotwords: phrases that a beam search is drawn to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


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
        self.words: set[str] = set()
        for phrase in phrases:
            self._add(phrase)
            self.words.update(phrase.split())

    def _add(self, phrase: str) -> None:
        node = self._root
        whole = self._score * len(phrase.split())
        for number, character in enumerate(phrase, start=1):
            node = node.after.setdefault(character, _Node())
            node.bonus = max(node.bonus, whole * number / len(phrase))
            node.words = len(phrase[:number].split())
        node.is_whole = True

    def spell(self, matches: Matches, character: str, *, begins_word: bool) -> tuple[Matches, float]:
        """Follow a hypothesis by a character of a word; return where it is now, and what it gains."""
        still_open = (*matches.open, Match(self._root, 0.0)) if begins_word else matches.open
        after = _follow(still_open, character)
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
    if not still_open:  # as nearly always
        return NOWHERE
    return Matches(tuple(still_open), max(0.0, *(node.bonus - paid for node, paid in still_open)))
