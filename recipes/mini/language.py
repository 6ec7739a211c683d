"""Language-specific parts of the corpus: sentences and espeak's voices."""

from typing import NamedTuple

# Maps each kind to its alternatives; the kind "sentence" is the start. In an alternative, the name of a kind in braces
# is replaced by an alternative of this kind. Numbers are spelled out.
Grammar = dict[str, tuple[str, ...]]


class Language(NamedTuple):
    """A language of the corpus.

    Args:
        grammar: grammar of the sentences.
        unlike: kinds of which a sentence must not contain the same alternative twice, such as places: this excludes
            `the bank is near the bank`.
        accents: espeak-ng's names of the accents.
        code: ISO 639 code, the label `language` of the utterances.
    """

    grammar: Grammar
    unlike: tuple[str, ...]
    accents: tuple[str, ...]
    code: str
