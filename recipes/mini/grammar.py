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
    """Yield different sentences without end, the same for the same seed; a few thousand take little time.

    Alternatives are dealt like cards: a pack is shuffled again when it is used up. So all words of a kind are equally
    frequent, and even a short stream has all words often enough to be learnt.
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
    """Whether a sentence repeats a name of the kinds `language.unlike`."""
    names = {alternative.split()[-1] for kind in language.unlike for alternative in language.grammar[kind]}
    words = [word for word in sentence.split() if word in names]
    return len(words) != len(set(words))
