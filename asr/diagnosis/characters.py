"""Characters of texts, as written, that are not what is said: foreign look-alikes, marks, entities, digits, damage."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from asr.diagnosis.finding import Case, Finding, Severity, Splits, share

LOOK_ALIKES = ("LATIN", "CYRILLIC", "GREEK")  # scripts that share the shapes of letters
MARK = re.compile(r"<[^<>\s]{1,30}>|\[[^\[\]\n]{1,30}\]")
ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});")
DIGITS = re.compile(r"(?<![#\d])\d+")
MOJIBAKE = re.compile("[\u00c2\u00c3\u00d0\u00d1][\u0080-\u00bf]|\u00e2\u20ac")  # UTF-8 that was read as Latin-1
MOST_SHARE = 0.5  # of texts with digits, above which digits are how this corpus is written


@dataclass(frozen=True, slots=True)
class TextCheck:
    """A fault of a text that its characters show.

    Args:
        kind: its name.
        find: what is wrong with a text; empty where nothing is.
        severity: of the finding.
        meaning: of all of them.
        advice: what to do.
    """

    kind: str
    find: Callable[[str], str]
    severity: Severity
    meaning: str
    advice: str


def mixed_scripts(text: str) -> str:
    """Name a word that has letters of two alphabets."""
    for word in text.split():
        letters = {character: unicodedata.name(character, "") for character in word if character.isalpha()}
        scripts = {script: [one for one, name in letters.items() if name.startswith(script)] for script in LOOK_ALIKES}
        there = sorted((script for script in scripts if scripts[script]), key=lambda script: len(scripts[script]))
        if len(there) > 1:
            odd = scripts[there[0]][0]
            return f"{word!r} has {odd!r}, {letters[odd].lower()}, among {there[-1].capitalize()} letters"
    return ""


def _named(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Name the first matches of a pattern."""

    def find(text: str) -> str:
        found = dict.fromkeys(pattern.findall(text))
        return ", ".join([*found][:5])

    return find


def damaged(text: str) -> str:
    """Name a character that no text has: a replacement or control character, or UTF-8 read as another encoding."""
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
        Severity.WARNING,
        "with a word of letters from two alphabets, which look alike and are different tokens.",
        "Replace the letters, for example by a table of look-alikes of the corpus' language.",
    ),
    TextCheck(
        "marks in texts",
        _named(MARK),
        Severity.WARNING,
        "with a mark such as <unk> or [LAUGHTER], which the normalizer may turn into a word that nobody says.",
        "Remove the marks, or the utterances that have them.",
    ),
    TextCheck(
        "HTML entities",
        _named(ENTITY),
        Severity.WARNING,
        "with an HTML entity such as &quot;, which the normalizer may turn into a word that nobody says.",
        "Unescape the texts, for example with Python's html.unescape.",
    ),
    TextCheck(
        "damaged characters",
        damaged,
        Severity.WARNING,
        "with a character that belongs to no text.",
        "Read the texts in the encoding that they were written in, and write them as UTF-8.",
    ),
    TextCheck(
        "digits",
        _named(DIGITS),
        Severity.WARNING,
        "with digits, which do not tell how a number is said, while most texts have none.",
        "Write numbers as they are said, in all splits alike.",
    ),
)


def character_findings(splits: Splits) -> list[Finding]:
    """Say which texts have characters that are not what is said.

    Args:
        splits: texts as written.
    """
    findings = []
    total = sum(map(len, splits.values()))
    for check in CHECKS:
        cases = [
            Case(split, utterance, problem)
            for split, utterances in splits.items()
            for utterance in utterances
            if (problem := check.find(utterance.text))
        ]
        if not cases or (check.kind == "digits" and len(cases) > MOST_SHARE * total):
            continue
        what = f"{share(cases, splits)} {check.meaning}"
        findings.append(Finding(check.kind, check.severity, what, check.advice, cases))
    return findings
