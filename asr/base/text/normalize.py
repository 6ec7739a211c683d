"""Named text normalisers: one rule for training texts, references and hypotheses.

A bundle stores the normaliser's name, so WER is always computed with the normaliser of the training.
"""

# ruff: noqa: RUF001  letters and signs that look alike are decided about here

import re
import unicodedata
from collections.abc import Callable
from functools import cache

from asr.base.settings.rule import one_of
from asr.base.text.scripts import HEBREW, JOINING, UNSPACED, VIRAMA
from asr.base.text.spelling import APOSTROPHES, GERESH, JOINERS, MIDDLE, SIGNS, SPELLINGS
from asr.errors import InputError, how_to_install

Normalizer = Callable[[str], str]

# In these expressions, [^\W_] is a letter or digit; any character but these, signs and spaces is a mark.
_TWICE_DOTTED = re.compile("i\u0307(?![\u0300-\u036f])")  # as in the lower case of İ
_JOINER = re.compile(
    f"(?<=[{JOINING}])([{JOINERS}])[{JOINERS}]*(?=[{JOINING}])|(?<=[{VIRAMA}])(\u200d)[{JOINERS}]*|[{JOINERS}]+"
)
_LONE_MARKS = re.compile(rf"([\s{SIGNS}])[^\w\s{SIGNS}]+")
_APOSTROPHE = re.compile(rf"[{APOSTROPHES}ʼ](?<=[^\s\d{SIGNS}ʼ].)(?=[^\W\d_])(?!ʼ)")
_HEBREW_LETTER = re.compile("[א-ת]")
_GERSHAYIM = re.compile(rf"""(?<=[{HEBREW}])"(?=[א-ת])""")
_GERESH = re.compile(rf"(?<=[{HEBREW}])'(?=[א-ת])")
_IN_WORD = "|".join(
    (
        rf"(?<=[^\s{SIGNS}]')(?=[^\W_])",
        rf"(?<=[^\s\d{SIGNS}{UNSPACED}][{MIDDLE}])(?=[^\W\d_{UNSPACED}])",
        rf"(?<=[{HEBREW}]{GERESH})",
    )
)
_SEPARATOR = re.compile(rf"[{SIGNS}](?!{_IN_WORD})")


def as_written(text: str) -> str:
    """Keep case and punctuation; collapse white space and compose letters with their marks (NFC)."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def basic(text: str) -> str:
    """Keep letters (in lower case) and digits of any script, and signs in words; other signs separate words.

    'Don’t — “STOP”, 3 o'clock!' becomes "don't stop 3 o'clock".

    *Source*: Unicode Standard Annex 29, word boundaries. *Differs from it*: . : _ and , separate words, as in "e.g.",
    "3.5" and "12:30", and ' is part of a word beside digits, too. Signs that people type for an apostrophe become '
    between letters; " and ' between Hebrew letters become gershayim and geresh. `asr.base.text.spelling` says what
    becomes of each character.
    """
    if text.isascii():
        text = text.lower().translate(SPELLINGS)
    else:
        text = unicodedata.normalize("NFC", text).replace("İ", "i").lower().translate(SPELLINGS)
        text = unicodedata.normalize("NFC", _JOINER.sub(r"\1\2", text))
        text = _LONE_MARKS.sub(r"\1", f" {_TWICE_DOTTED.sub('i', text)}")
    text = _APOSTROPHE.sub("'", text)
    if _HEBREW_LETTER.search(text):
        text = _GERESH.sub("׳", _GERSHAYIM.sub("״", text))
    return " ".join(_SEPARATOR.sub(" ", text).split())


def basic_turkic(text: str) -> str:
    """Normalise as `basic`, with the lower case of Turkish and Azerbaijani: I becomes ı, İ becomes i."""
    return basic(unicodedata.normalize("NFC", text).replace("I", "ı").replace("İ", "i"))


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
    "basic_turkic": basic_turkic,
    "whisper_english": whisper_english,
}
# These normalise each word independently of its neighbours.
BY_WORDS = frozenset({as_written, basic, basic_turkic})


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

    For normalisers in BY_WORDS each distinct word is normalised once.
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
