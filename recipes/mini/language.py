"""What differs between languages: sentences and espeak's voices."""

from typing import NamedTuple

# Alternatives of each kind, among them "sentence"; a name in braces is replaced by an alternative of that kind. Numbers
# are spelled out.
Grammar = dict[str, tuple[str, ...]]


class Language(NamedTuple):
    """A language of the corpus.

    Args:
        grammar: of its sentences.
        unlike: kinds whose alternatives a sentence does not repeat, as in `the bank is near the bank`.
        accents: espeak-ng's names.
    """

    grammar: Grammar
    unlike: tuple[str, ...]
    accents: tuple[str, ...]
