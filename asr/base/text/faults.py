"""Faults of transcripts that can be seen in their characters: marks, entities, look-alikes, wrong encodings, digits."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

LOOK_ALIKES = ("LATIN", "CYRILLIC", "GREEK")  # scripts whose letters look alike
MARK = re.compile(r"<[^<>\s]{1,30}>|\[[^\[\]\n]{1,30}\]")
ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});")
DIGITS = re.compile(r"(?<![#\d])\d+")
MOJIBAKE = re.compile("[\u00c2\u00c3\u00d0\u00d1][\u0080-\u00bf]|\u00e2\u20ac")  # UTF-8 decoded as Latin-1
MAX_DIGIT_SHARE = 0.5  # digits are reported only if at most this share of the texts contains digits


class TextCheck(NamedTuple):
    """A check of the characters of a text.

    Args:
        kind: name of the check.
        find: returns a description of the fault in a text, or "" for a text without a fault.
        meaning: a sentence without its subject, the number of texts that have the fault.
        advice: what to do.
    """

    kind: str
    find: Callable[[str], str]
    meaning: str
    advice: str


def mixed_scripts(text: str) -> str:
    """Describe the first word that mixes letters of two alphabets; return "" if no word does."""
    for word in text.split():
        letters = {character: unicodedata.name(character, "") for character in word if character.isalpha()}
        scripts = {
            script: [letter for letter, name in letters.items() if name.startswith(script)] for script in LOOK_ALIKES
        }
        present = sorted((script for script in scripts if scripts[script]), key=lambda script: len(scripts[script]))
        if len(present) > 1:
            odd = scripts[present[0]][0]
            return f"{word!r} has {odd!r}, {letters[odd].lower()}, among {present[-1].capitalize()} letters"
    return ""


def _named(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Return a function that lists the first matches of a pattern in a text, separated by commas."""

    def find(text: str) -> str:
        matches = dict.fromkeys(pattern.findall(text))
        return ", ".join([*matches][:5])

    return find


def damaged(text: str) -> str:
    """Describe the first damaged character of a text; return "" if there is none.

    A character is damaged if it is a replacement, control, private-use or unassigned character, or part of mojibake.
    """
    for character in text:
        if character == "\N{REPLACEMENT CHARACTER}" or unicodedata.category(character) in ("Co", "Cn"):
            return f"{character!r} in {text!r}"
        if unicodedata.category(character) == "Cc" and not character.isspace():
            return f"{character!r} in {text!r}"
    match = MOJIBAKE.search(text)
    return f"{match[0]!r} in {text!r}" if match else ""


CHECKS = (
    TextCheck(
        "letters of another alphabet",
        mixed_scripts,
        "with a word that mixes letters of two alphabets; the letters look alike but are different tokens.",
        "Replace the letters, for example with a table of look-alikes for the corpus' language.",
    ),
    TextCheck(
        "marks in texts",
        _named(MARK),
        "with a mark such as <unk> or [LAUGHTER], which the normalizer may turn into a word that was not spoken.",
        "Remove the marks, or the utterances that have them.",
    ),
    TextCheck(
        "HTML entities",
        _named(ENTITY),
        "with an HTML entity such as &quot;, which the normalizer may turn into a word that was not spoken.",
        "Unescape the texts, for example with Python's html.unescape.",
    ),
    TextCheck(
        "damaged characters",
        damaged,
        "with a replacement, control or unassigned character, or with text in the wrong encoding.",
        "Decode the texts with the encoding in which they were written, and write them as UTF-8.",
    ),
    TextCheck(
        "digits",
        _named(DIGITS),
        "with digits, although most texts have no digits; digits do not show how a number is spoken.",
        "Write numbers as they are spoken, in the same way in all splits.",
    ),
)


def failed_checks(texts: Sequence[str]) -> Iterator[tuple[TextCheck, dict[int, str]]]:
    """Yield each of the `CHECKS` that texts fail, with the descriptions of the faults by the index of the text.

    Args:
        texts: texts before normalisation.
    """
    for check in CHECKS:
        faults = {index: fault for index, text in enumerate(texts) if (fault := check.find(text))}
        if faults and (check.kind != "digits" or len(faults) <= MAX_DIGIT_SHARE * len(texts)):
            yield check, faults
