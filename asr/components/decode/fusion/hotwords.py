"""Hotwords: phrases that a beam search prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from asr.base.system.files import bounded_lines
from asr.base.text.words import spell_characters
from asr.components.decode.fusion.lexicon import Words
from asr.errors import InputError
from asr.interfaces import Biasing, Tokenizer

MAX_PHRASE = 1000  # characters in a phrase; names and terms have about ten
MAX_CHARACTERS = 1_000_000  # in all phrases together (0.3 kB of memory each); enough for tens of thousands of names


class _Node:
    """A node of the tree of characters; it represents a prefix of one or more phrases."""

    __slots__ = ("after", "bonus", "is_whole", "words")

    def __init__(self) -> None:
        self.after: dict[str, _Node] = {}
        self.bonus = 0.0  # maximum over phrases through this node: bonus * fraction of the characters so far
        self.words = 0.0  # bonus of the words begun up to this node
        self.is_whole = False  # whether a phrase ends at this node


class Match(NamedTuple):
    """Position of a hypothesis in the tree, and the bonus that completed phrases have earned on the path to it."""

    node: _Node
    paid: float


class Matches(NamedTuple):
    """Positions of a hypothesis in unfinished phrases: for each word where a phrase may have begun, one in each tree.

    `bonus` is provisional: it is subtracted again if no phrase is completed. `open` begins with the phrases that began
    earliest.
    """

    open: tuple[Match, ...] = ()
    bonus: float = 0.0


NOWHERE = Matches()


class Phrases:
    """A list of phrases as a tree of characters.

    Args:
        phrases: normalised phrases, with words separated by single spaces.
        score: bonus for each word of a phrase (natural logarithm).
    """

    def __init__(self, phrases: Iterable[str], score: float) -> None:
        self.root = _Node()
        self.most = 0.0  # largest bonus of a phrase
        words: set[str] = set()
        for phrase in phrases:
            self._add(phrase, score)
            words.update(phrase.split())
        self.words = Words(words)

    def _add(self, phrase: str, score: float) -> None:
        node, words = self.root, 0
        whole = score * len(phrase.split())
        self.most = max(self.most, whole)
        for number, (before, character) in enumerate(pairwise(f" {phrase}"), start=1):
            node = node.after.setdefault(character, _Node())
            node.bonus = max(node.bonus, whole * number / len(phrase))
            words += before.isspace() and not character.isspace()
            node.words = score * words
        node.is_whole = True


class Matcher:
    """The phrases of several lists.

    The bonus of a phrase is the score of its list for each of its words; a word in several phrases counts once. A
    phrase can begin only at the beginning of a word. While a hypothesis spells a phrase, it gets the bonus character by
    character, so it stays in the beam; if it departs from the phrase, it loses the bonus. A phrase must end at the end
    of a word.

    Args:
        lists: the lists.
    """

    def __init__(self, lists: Sequence[Phrases]) -> None:
        self._roots = [phrases.root for phrases in lists]
        self.most = max((phrases.most for phrases in lists), default=0.0)  # largest bonus of a phrase

    def spell(self, matches: Matches, part: str, *, begins_word: bool) -> tuple[Matches, float]:
        """Extend a hypothesis by characters of a word; return its matches and the gain in score."""
        still_open = matches.open
        if begins_word:
            still_open += tuple([Match(root, 0.0) for root in self._roots if part[0] in root.after])
        if not still_open:  # the most frequent case
            return NOWHERE, 0.0
        after = Matches(still_open)
        for character in part:
            after = _follow(after.open, character)
        return after, after.bonus - matches.bonus

    @staticmethod
    def end_word(matches: Matches) -> tuple[Matches, float]:
        """Extend a hypothesis to the end of a word; return its matches and the gain in score."""
        if not matches.open:
            return matches, 0.0
        still_open = matches.open
        # In one list, the longest phrase that ends here earns the most.
        earned = max((node.words - paid for node, paid in still_open if node.is_whole), default=0.0)
        if earned > 0.0:
            still_open = tuple([Match(node, min(paid + earned, node.words)) for node, paid in still_open])
        after = _follow(still_open, " ")
        return after, earned + after.bonus - matches.bonus


def _follow(matches: Iterable[Match], character: str) -> Matches:
    still_open = [Match(node.after[character], paid) for node, paid in matches if character in node.after]
    if not still_open:
        return NOWHERE
    return Matches(tuple(still_open), max(0.0, *(node.bonus - paid for node, paid in still_open)))


def compiled(phrases: Iterable[str], score: float, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> Biasing:
    """Normalise and compile the phrases that the tokenizer covers, and note why each other phrase is excluded."""
    possible: dict[str, None] = {}
    impossible: dict[str, str] = {}
    for written in phrases:
        phrase = normalize(written)
        if not written.strip():
            continue
        try:
            tokens = tokenizer.encode(phrase)
        except InputError as error:
            impossible[written.strip()] = str(error)
            continue
        if not phrase:
            impossible[written.strip()] = "nothing is left of it after normalisation"
        elif not spell_characters(tokens, tokenizer.pieces):
            impossible[written.strip()] = "a token of it is a byte or a hidden piece, which beam search cannot match"
        else:
            possible[phrase] = None
    return Biasing(list(possible), impossible, (Phrases(possible, score),) if possible else ())


def replaced(old: Biasing, new: Biasing) -> Biasing:
    """Return `new` with a bound on bonuses that holds for a phrase of `old` that a hypothesis has begun."""
    begun = Phrases((), 0.0)
    begun.most = max((phrases.most for phrases in old.lists), default=0.0)
    return replace(new, lists=(*new.lists, begun))


def read_phrases(path: str) -> list[str]:
    """Read the phrases of a file, one per line, as they are written.

    Raises:
        InputError: the file cannot be read, is not text, or is empty.
    """
    phrases = [line.strip() for line in _lines(path) if line.strip()]
    if not phrases:
        raise InputError(f"{path}: hotwords must be phrases, one per line; the file has none.")
    return phrases


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
