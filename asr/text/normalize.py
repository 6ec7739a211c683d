"""Named text normalisers: one rule for what a tokenizer learns, for references and for hypotheses.

A bundle holds the normaliser's name, so that a WER is always measured under the rule the model was trained with.
"""

import unicodedata
from collections.abc import Callable
from functools import cache

from asr.errors import InputError, how_to_install
from asr.settings.rule import one_of

Normalizer = Callable[[str], str]


def as_written(text: str) -> str:
    """Keep case and punctuation; runs of white space become one space, and letters are composed with their marks."""
    return " ".join(unicodedata.normalize("NFC", text).split())


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


def whisper_english(text: str) -> str:
    """Write English as the Open ASR Leaderboard scores it: twenty-five dollars as $25, colour as color, it's as it is.

    *Source*: Radford et al. 2022, arXiv:2212.04356, appendix C; the package whisper_normalizer has its code.

    Raises:
        InputError: the package is not installed.
    """
    return " ".join(_whisper_english()(text).split())


@cache
def _whisper_english() -> Normalizer:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError:
        must = "normalizer=whisper_english must have the package whisper_normalizer; it is not installed"
        raise InputError(f"{must}. {how_to_install('leaderboard')}") from None
    return EnglishTextNormalizer()


NORMALIZERS: dict[str, Normalizer] = {
    "as_written": as_written,
    "basic": basic,
    "whisper_english": whisper_english,
}
BY_WORDS = frozenset({as_written, basic})  # these make of each word of a text what they make of the word alone


def get_normalizer(name: str) -> Normalizer:
    """Look a normaliser up by the name that configs and bundles hold.

    Raises:
        InputError: there is none of this name, or it needs a package that is not installed.
    """
    one_of(*NORMALIZERS).check("normalizer", name)
    normalizer = NORMALIZERS[name]
    normalizer("")  # a package that is missing is missed now, and not in the middle of the work
    return normalizer


def scored_by(normalizer: Normalizer) -> Normalizer:
    """Return what a model's errors are counted by: its own normaliser, and `basic` if that keeps texts as written.

    The error rate of texts as written stands beside the other one in every report.
    """
    return basic if normalizer is as_written else normalizer


def word_by_word(normalize: Normalizer, check: Callable[[str], str] = str) -> Callable[[str], list[str]]:
    """Make a function that splits a text into normalised words; `check` receives normalised text and returns it.

    Each different word is normalised once, which takes a tenth of the time, unless words change beside others.
    """
    if normalize not in BY_WORDS:
        return lambda line: check(normalize(line)).split()
    known: dict[str, list[str]] = {}

    def spell(line: str) -> list[str]:
        words: list[str] = []
        for word in line.split():
            if (normal := known.get(word)) is None:
                normal = known[word] = check(normalize(word)).split()
            words += normal
        return words

    return spell
