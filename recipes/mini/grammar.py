"""Sentences from a grammar."""

import random
import re
from collections.abc import Iterator

from recipes.mini.language import Grammar, Language


def vocabulary(grammar: Grammar) -> set[str]:
    """Return all words of a grammar."""
    alternatives = (alternative for choices in grammar.values() for alternative in choices)
    return {word for alternative in alternatives for word in re.sub(r"\{\w+\}", " ", alternative).split()}


def sentences(language: Language, seed: str) -> Iterator[str]:
    """Yield an endless sequence of different sentences, determined by the seed; thousands are generated quickly.

    The alternatives of a kind are shuffled, used one after another, and shuffled again when all have been used. So all
    words of a kind are equally frequent, and even few sentences contain all words often enough to learn them.
    """
    dealer = random.Random(seed)
    grammar = language.grammar
    packs: dict[str, list[str]] = {name: [] for name in grammar}
    yielded: set[str] = set()

    def deal(name: str) -> str:
        if not packs[name]:
            packs[name] = dealer.sample(grammar[name], len(grammar[name]))
        return re.sub(r"\{(\w+)\}", lambda slot: deal(slot[1]), packs[name].pop())

    while True:
        sentence = deal("sentence")
        if sentence not in yielded and not _says_twice(sentence, language):
            yielded.add(sentence)
            yield sentence


def _says_twice(sentence: str, language: Language) -> bool:
    """Whether a sentence contains an alternative of a kind in `language.unlike` more than once."""
    names = {alternative.split()[-1] for kind in language.unlike for alternative in language.grammar[kind]}
    words = [word for word in sentence.split() if word in names]
    return len(words) != len(set(words))
