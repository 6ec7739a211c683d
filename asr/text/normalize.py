"""Named text normalisers: one rule for training texts, references and hypotheses.

A bundle stores the normaliser's name, so WER is always computed with the normaliser of the training.
"""

import unicodedata
from collections.abc import Callable
from functools import cache

from asr.errors import InputError, how_to_install
from asr.settings.rule import one_of

Normalizer = Callable[[str], str]


def as_written(text: str) -> str:
    """Keep case and punctuation; collapse white space and compose letters with their marks (NFC)."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def basic(text: str) -> str:
    """Keep letters (in lower case) and digits of any script, and apostrophes in words; other signs separate words.

    'Don’t — “STOP”, 3 o'clock!' becomes "don't stop 3 o'clock".
    """
    lowered = unicodedata.normalize("NFKC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    text = unicodedata.normalize("NFKC", lowered)  # some letters compose with their marks only in lower case
    # A combining mark is part of its letter: many scripts are unreadable without marks.
    in_word = [unicodedata.category(character)[0] in "LMN" for character in text]
    characters = [
        character if is_word or (character == "'" and before and after) else " "
        for character, before, is_word, after in zip(
            text, [False, *in_word], in_word, [*in_word[1:], False], strict=False
        )
    ]
    return " ".join("".join(characters).split())


def whisper_english(text: str) -> str:
    """Normalise English as the Open ASR Leaderboard does: "twenty-five dollars" to "$25", "colour" to "color".

    *Source*: Radford et al. 2022, arXiv:2212.04356, appendix C, by the package whisper_normalizer.

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
BY_WORDS = frozenset({as_written, basic})  # these normalise each word independently of its neighbours


def get_normalizer(name: str) -> Normalizer:
    """Return the normaliser of this name.

    Raises:
        InputError: the name is unknown, or the normaliser needs a package that is not installed.
    """
    one_of(*NORMALIZERS).check("normalizer", name)
    normalizer = NORMALIZERS[name]
    normalizer("")  # reports a missing package now instead of later
    return normalizer


def scored_by(normalizer: Normalizer) -> Normalizer:
    """Return the normaliser with which a model's errors are counted: its own, or `basic` in place of `as_written`.

    Reports also show the error rate of the texts as written.
    """
    return basic if normalizer is as_written else normalizer


def word_by_word(normalize: Normalizer, check: Callable[[str], str] = str) -> Callable[[str], list[str]]:
    """Return a function that splits a text into normalised words; `check` receives normalised text and returns it.

    For normalisers in BY_WORDS each distinct word is normalised once, which takes a tenth of the time.
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
