"""The letters of languages and of scripts.

The letters of languages are the base and auxiliary exemplar characters of Unicode's CLDR, in `alphabets.json.gz`;
`python -m tools.alphabets` writes this file. Its licence is `alphabets.LICENSE`.
"""

import gzip
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from asr.errors import InputError, shown

FILE = Path(__file__).with_name("alphabets.json.gz")
LIST_LANGUAGES = 'python -c "from asr.base.text.alphabets import languages; print(*languages())"'
HAN = ("cjk", "ideographic")  # the first words of the names of ideographs
ANY_SCRIPT = {"modifier", "vertical"}  # of letters that belong to no script, such as the apostrophe of Ukrainian


class Alphabet(NamedTuple):
    """The letters of a language or of a script.

    Args:
        name: name of the language or of the script.
        base: what texts cannot do without, each letter as in `units`: a language's base letters; for a script, the
            base letters that more than half of its languages share, because no language uses all letters of a script.
        has: whether a letter, upper or lower case, belongs to the alphabet.
    """

    name: str
    base: frozenset[str]
    has: Callable[[str], bool]


def find_alphabet(name: object, setting: str = "characters") -> Alphabet:
    """Return the letters of a language or of a script.

    Args:
        name: name of a language in CLDR, such as de or sr-Latn, or of a script, such as cyrillic; yi is Yiddish.
        setting: name of the setting, for the error.

    Raises:
        InputError: there is no such name.
    """
    if isinstance(name, str) and name in _letters_by_language():
        base, auxiliary = _letters_by_language()[name]
        return Alphabet(name, units(base), partial(_is_one_of, frozenset(base + auxiliary)))
    if isinstance(name, str) and name in scripts():
        return Alphabet(name, scripts()[name], partial(_has_script, name))
    must = f"{setting} must be a language, such as de or sr-Latn, or a script ({', '.join(scripts())})"
    raise InputError(f"{must}; got {shown(name)}. To list the languages: {LIST_LANGUAGES}")


def languages() -> list[str]:
    """List the languages, some with a script or a country, such as sr-Latn and de-CH."""
    return sorted(_letters_by_language())


@cache
def scripts() -> dict[str, frozenset[str]]:
    """Return the scripts of the languages, in alphabetical order, each with the letters that its languages share."""
    numbers: Counter[str] = Counter()  # of languages, by script
    letters: dict[str, Counter[str]] = {}  # number of languages, by script and letter
    for base, _ in _letters_by_language().values():
        by_script: dict[str, list[str]] = {}
        for letter in base:
            for script in _scripts_of(letter):
                by_script.setdefault(script, []).append(letter)
        for script, own in by_script.items():
            numbers[script] += 1
            letters.setdefault(script, Counter()).update(units(own))
    return {
        script: frozenset(letter for letter, count in letters[script].items() if 2 * count > number)
        for script, number in sorted(numbers.items())
        if script not in ANY_SCRIPT
    }


def letters_of(text: str) -> list[str]:
    """Return the letters of a text, composed with their marks (NFC)."""
    return [character for character in unicodedata.normalize("NFC", text) if character.isalpha()]


def units(letters: Iterable[str]) -> frozenset[str]:
    """Return letters in lower case; a Korean syllable becomes its parts, because no model has all 11,172 syllables."""
    apart = (unicodedata.normalize("NFD", each) if "가" <= each <= "힣" else each.lower() for each in letters)
    return frozenset(character for part in apart for character in part if character.isalpha())


@cache
def _letters_by_language() -> dict[str, tuple[str, str]]:
    content: dict[str, tuple[str, str]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return content


def _is_one_of(letters: frozenset[str], letter: str) -> bool:
    return letter in letters or letter.lower() in letters


def _has_script(script: str, letter: str) -> bool:
    return script in _scripts_of(letter) or _scripts_of(letter) <= ANY_SCRIPT


@cache
def _scripts_of(letter: str) -> frozenset[str]:
    """Return the scripts of a letter: the first word of its name, because Python has no table of scripts.

    The name of a compatibility letter, such as a full-width one, begins with another word, so that its plain letters
    count. The mark ー has two scripts.
    """
    plain = [each for each in unicodedata.normalize("NFKC", letter) if each.isalpha()] or [letter]
    first = {word for each in plain for word in unicodedata.name(each, "unknown").lower().split()[0].split("-")}
    return frozenset("han" if word in HAN else word for word in first - ANY_SCRIPT or first)
