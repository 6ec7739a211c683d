"""What differs from language to language: what is said, and by which of espeak's voices."""

from typing import NamedTuple

# The alternatives of each kind, "sentence" among them; a name in braces stands for one of that kind. Numbers are
# spelled out.
Grammar = dict[str, tuple[str, ...]]


class Language(NamedTuple):
    """A language of the corpus.

    Args:
        grammar: of its sentences.
        unlike: kinds of which a sentence does not say the same twice, as in `the bank is near the bank`.
        accents: as espeak-ng calls them.
    """

    grammar: Grammar
    unlike: tuple[str, ...]
    accents: tuple[str, ...]
