"""Hotwords: phrases that a beam search prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from asr.errors import InputError
from asr.interfaces import Hotwords, Tokenizer
from asr.system.files import bounded_lines
from asr.text.words import spell_characters

MAX_PHRASE = 1000  # characters in a phrase; names and terms have about ten
MAX_CHARACTERS = 1_000_000  # in all phrases together (0.3 kB of memory each); enough for tens of thousands of names


class _Node:
    """A node of the tree of characters; it represents a prefix of one or more phrases."""

    __slots__ = ("after", "bonus", "is_whole", "words")

    def __init__(self) -> None:
        self.after: dict[str, _Node] = {}
        self.bonus = 0.0  # maximum over phrases through this node: bonus * fraction of the characters so far
        self.words = 0  # number of words begun up to this node
        self.is_whole = False  # whether a phrase ends at this node


class Match(NamedTuple):
    """Position of a hypothesis in the tree, and the bonus that completed phrases have earned on the path to it."""

    node: _Node
    paid: float


class Matches(NamedTuple):
    """Positions of a hypothesis in unfinished phrases, one for each word where a phrase may have begun.

    `bonus` is provisional: it is subtracted again if no phrase is completed. `open` begins with the phrase that began
    earliest.
    """

    open: tuple[Match, ...] = ()
    bonus: float = 0.0


NOWHERE = Matches()


class Phrases:
    """Phrases as a tree of characters.

    The bonus of a phrase is `score` for each of its words; a word in several phrases counts once. A phrase can begin
    only at the beginning of a word. While a hypothesis spells a phrase, it gets the bonus character by character, so it
    stays in the beam; if it departs from the phrase, it loses the bonus. A phrase must end at the end of a word.

    Args:
        phrases: normalised phrases, with words separated by single spaces.
        score: bonus for each word of a phrase (natural logarithm).
    """

    def __init__(self, phrases: Iterable[str], score: float) -> None:
        self._root = _Node()
        self._score = score
        self.most = 0.0  # largest bonus of a phrase
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
        """Extend a hypothesis by characters of a word; return its matches and the gain in score."""
        still_open = matches.open
        if begins_word and part[0] in self._root.after:
            still_open = (*still_open, Match(self._root, 0.0))
        if not still_open:  # the most frequent case
            return NOWHERE, 0.0
        after = Matches(still_open)
        for character in part:
            after = _follow(after.open, character)
        return after, after.bonus - matches.bonus

    def end_word(self, matches: Matches) -> tuple[Matches, float]:
        """Extend a hypothesis to the end of a word; return its matches and the gain in score."""
        if not matches.open:
            return matches, 0.0
        still_open, earned = matches.open, 0.0
        ended = next(
            (match for match in matches.open if match.node.is_whole), None
        )  # the longest phrase that ends here
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
    """Read hotwords; return the normalised phrases that the tokenizer covers, and why each other phrase is excluded.

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
            tokens = tokenizer.encode(phrase)
        except InputError as error:
            impossible[line.strip()] = str(error)
            continue
        if not phrase:
            impossible[line.strip()] = "nothing is left of it after normalisation"
        elif not spell_characters(tokens, tokenizer.pieces):
            impossible[line.strip()] = "a token of it is a byte or a hidden piece, which beam search cannot match"
        else:
            phrases[phrase] = None
    if not phrases and not impossible:
        raise InputError(f"{path}: hotwords must be phrases, one per line; the file has none.")
    return Hotwords(list(phrases), impossible)


def _lines(path: str) -> Iterator[str]:
    characters = 0
    try:
        with open(path, encoding="utf-8") as file:
            for where, line in bounded_lines(file.readline, MAX_PHRASE, path):
                characters += len(line)
                if characters > MAX_CHARACTERS:
                    must = f"{where}: hotwords must have at most {MAX_CHARACTERS:,} characters in total"
                    raise InputError(f"{must}; this line exceeds the limit.")
                yield line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error.reason})"
        raise InputError(f"{path}: hotwords must be a text file with one phrase per line; {reason}.") from None
