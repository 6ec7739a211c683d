"""How the normaliser `basic` spells each character."""

# ruff: noqa: RUF001  letters and signs that look alike are decided about here

import re
import unicodedata

# Signs that the normaliser decides about by their neighbours.
APOSTROPHES = "´`‘‛′΄᾽᾿՚"  # typed for an apostrophe, as is ʼ, which is also a letter
MIDDLE = "·‧՟״"  # U+00B7 and others of UAX 29's MidLetter, part of a word between letters
GERESH = "׳"
SIGNS = f"'\"{APOSTROPHES}{MIDDLE}{GERESH}"  # all signs that `SPELLINGS` does not change
JOINERS = "\u200c\u200d\u180e"  # zero width non-joiner and joiner; Mongolian vowel separator

_SAME = frozenset(SIGNS + JOINERS)
_SIMPLER = {"’": "'", "”": '"', "ℹ": " "}  # the last one is an emoji
_OVER_LETTERS = "՛՜՞"  # Armenian marks of the tone of a sentence, which are written inside a word
_VISIBLE = re.compile("[\u0600-\u0605\u06dd\u0890\u0891\u08e2\u200b\U000110bd\U000110cd]")  # of category Format
_INVISIBLE = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # marks that choose a shape
_BLANK = "\u3164\uffa0"  # Hangul fillers, category Letter
_LETTERS_IN_USE = re.compile("[ŉև\u0675-\u0678\u0e33\u0eb3\u0edc\u0edd\u0f77\u0f79\u1e9a\u3131-\u318e]")
_SPACING_MARKS = re.compile("[\u309b\u309c\ufc5e-\ufc63\ufe70-\ufe7f]")


def _spelled(character: str) -> str:
    """Return a character's spelling in lower case: "" if it is invisible, a space if it separates words.

    Unicode's compatibility decompositions replace a shape by the letters it shows, but also letters by other letters.
    By their tags:

    * wide, narrow, initial, medial, final, isolated, font, vertical, small, square, circle: shapes of older character
      sets, decomposed: ＡＢＣ, ｶﾞ, ﻼ, 𝐱, ㎒, ①. Symbols from U+1F000 on are emoji, and separate words.
    * compat: ligatures, digraphs, Roman numerals, radicals and symbols, decomposed: ﬁ, ĳ, ŀ (Catalan l·l), ſ, Ⅷ, ⼀, ℃.
      Letters in use are not: Afrikaans ŉ, Armenian և, Thai and Lao SARA AM, Lao digraphs, Kazakh letters with hamza,
      Tibetan vowels, ẚ, and the Hangul letters ㄱ to ㆎ.
    * a space and a mark (´ ¨ ˜): signs, unless the mark follows its letter: ゛ and Arabic marks become the mark.
    * super, sub: digits are decomposed: x². Letters are in use, and are not: ª, º, ʷ, ⁿ in Min Nan. ™ is a sign.
    * fraction: ½ becomes "1 2" like 1/2, but 2½ becomes "2 1 2", not "21 2".
    * noBreak: spaces and hyphens, which separate words anyway.

    Format characters are invisible, except signs of Arabic numbers; U+200B is the space of Thai and Khmer.
    """
    category = unicodedata.category(character)
    if character in _SAME:
        return character
    if character in _SIMPLER:
        return _SIMPLER[character]
    if _VISIBLE.match(character) or character in _BLANK:
        return " "
    if category in ("Cf", "Me") or character in _OVER_LETTERS or _INVISIBLE.match(character):
        return ""
    parts = _parts(character, category)
    if parts is not None:
        return "".join(map(_spelled, parts.lower()))
    return character if category[0] in "LMN" else " "


def _parts(character: str, category: str) -> str | None:
    """Return the characters that this one is a shape of, or None."""
    tag, *codes = unicodedata.decomposition(character).split() or [""]
    parts = "".join(chr(int(code, 16)) for code in codes)
    if tag == "<fraction>":
        return f" {parts}"
    if tag in ("<super>", "<sub>"):
        return parts if category[0] == "N" else None
    if tag.startswith("<"):
        if _SPACING_MARKS.match(character):
            return parts.removeprefix(" ")
        emoji = category == "So" and character >= "\U0001f000"
        return None if parts.startswith(" ") or emoji or _LETTERS_IN_USE.match(character) else parts
    canonical = unicodedata.normalize("NFD", character)  # ẛ is ſ with a mark
    shapes = category[0] == "L" and any(_spelled(part) != part for part in canonical.lower()[:1] if part != character)
    return canonical if shapes else None


class _Spellings(dict[int, str]):
    """A table for `str.translate`, filled as characters occur."""

    def __missing__(self, code: int) -> str:
        spelling = self[code] = _spelled(chr(code))
        return spelling


SPELLINGS = _Spellings()
