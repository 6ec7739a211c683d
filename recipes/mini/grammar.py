"""Sentences out of a grammar."""

import random
import re
from collections.abc import Iterator

from recipes.mini.language import Grammar, Language


def vocabulary(grammar: Grammar) -> set[str]:
    """Every word the grammar can say."""
    alternatives = (alternative for several in grammar.values() for alternative in several)
    return {word for alternative in alternatives for word in re.sub(r"\{\w+\}", " ", alternative).split()}


def sentences(language: Language, seed: str) -> Iterator[str]:
    """An endless stream of different sentences, the same for the same seed; a few thousand are quickly had.

    Alternatives are dealt like cards, and a pack is shuffled again once it is used up. So all words of a kind come
    equally often, and a short stream has them all: a word heard twice cannot be learnt.
    """
    dealer = random.Random(seed)
    grammar = language.grammar
    packs: dict[str, list[str]] = {name: [] for name in grammar}
    said: set[str] = set()

    def deal(name: str) -> str:
        if not packs[name]:
            packs[name] = dealer.sample(grammar[name], len(grammar[name]))
        return re.sub(r"\{(\w+)\}", lambda slot: deal(slot[1]), packs[name].pop())

    while True:
        sentence = deal("sentence")
        if sentence not in said and not _says_twice(sentence, language):
            said.add(sentence)
            yield sentence


def _says_twice(sentence: str, language: Language) -> bool:
    """Whether a sentence sets a thing beside itself."""
    names = {alternative.split()[-1] for kind in language.unlike for alternative in language.grammar[kind]}
    words = [word for word in sentence.split() if word in names]
    return len(words) != len(set(words))
