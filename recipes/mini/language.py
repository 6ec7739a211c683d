"""Language-specific parts of the corpus: sentences and espeak's voices."""

from typing import NamedTuple

# Maps each kind to its alternatives; the kind "sentence" is the start. In an alternative, the name of a kind in braces
# is replaced by an alternative of this kind. Numbers are spelled out.
Grammar = dict[str, tuple[str, ...]]


class Language(NamedTuple):
    """A language of the corpus.

    Args:
        grammar: of its sentences.
        unlike: kinds whose alternatives may occur only once in a sentence; excludes `the bank is near the bank`.
        accents: espeak-ng's names.
    """

    grammar: Grammar
    unlike: tuple[str, ...]
    accents: tuple[str, ...]
