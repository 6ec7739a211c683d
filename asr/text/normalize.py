"""Named text normalisers: one rule for what a tokenizer learns, for references and for hypotheses.

A bundle holds the normaliser's name, so that a WER is always measured under the rule the model was trained with.
"""

import unicodedata
from collections.abc import Callable

from asr.system.settings import one_of

Normalizer = Callable[[str], str]


def verbatim(text: str) -> str:
    """Keep the text as the corpus wrote it; only runs of white space become one space."""
    return " ".join(text.split())


def basic(text: str) -> str:
    """Lower-case letters and digits of any script, and apostrophes inside words; everything else parts words.

    'Don’t — “STOP”, 3 o'clock!' becomes "don't stop 3 o'clock".
    """
    lowered = unicodedata.normalize("NFKC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = unicodedata.normalize("NFKC", lowered)  # some letters compose with their marks in lower case only
    # A combining mark belongs to its letter: many scripts are unreadable without theirs.
    of_word = [unicodedata.category(character)[0] in "LMN" for character in text]
    kept = [
        character if word or (character == "'" and before and behind) else " "
        for character, before, word, behind in zip(
            text, [False, *of_word], of_word, [*of_word[1:], False], strict=False
        )
    ]
    return " ".join("".join(kept).split())


NORMALIZERS: dict[str, Normalizer] = {"verbatim": verbatim, "basic": basic}


def get_normalizer(name: str) -> Normalizer:
    """Look a normaliser up by the name that configs and bundles hold.

    Raises:
        InputError: there is none of this name.
    """
    one_of(*NORMALIZERS).check("normalizer", name)
    return NORMALIZERS[name]
