"""Checks for unsuitable characters in texts: letters of another alphabet, marks, HTML entities, damage, digits."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from asr.diagnosis.finding import Case, Finding, Severity, Splits, share

LOOK_ALIKES = ("LATIN", "CYRILLIC", "GREEK")  # scripts whose letters look alike
MARK = re.compile(r"<[^<>\s]{1,30}>|\[[^\[\]\n]{1,30}\]")
ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});")
DIGITS = re.compile(r"(?<![#\d])\d+")
MOJIBAKE = re.compile("[\u00c2\u00c3\u00d0\u00d1][\u0080-\u00bf]|\u00e2\u20ac")  # UTF-8 decoded as Latin-1
MAX_DIGIT_SHARE = 0.5  # digits are reported only if at most this share of the texts contains digits


@dataclass(frozen=True, slots=True)
class TextCheck:
    """A check of the characters of a text.

    Args:
        kind: name of the finding.
        find: returns a description of the fault in a text, or "" for a text without a fault.
        severity: severity of the finding.
        meaning: end of the message, after the number of utterances.
        advice: what to do.
    """

    kind: str
    find: Callable[[str], str]
    severity: Severity
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
        Severity.WARNING,
        "with a word that mixes letters of two alphabets; the letters look alike but are different tokens.",
        "Replace the letters, for example with a table of look-alikes for the corpus' language.",
    ),
    TextCheck(
        "marks in texts",
        _named(MARK),
        Severity.WARNING,
        "with a mark such as <unk> or [LAUGHTER], which the normalizer may turn into a word that was not spoken.",
        "Remove the marks, or the utterances that have them.",
    ),
    TextCheck(
        "HTML entities",
        _named(ENTITY),
        Severity.WARNING,
        "with an HTML entity such as &quot;, which the normalizer may turn into a word that was not spoken.",
        "Unescape the texts, for example with Python's html.unescape.",
    ),
    TextCheck(
        "damaged characters",
        damaged,
        Severity.WARNING,
        "with a replacement, control or unassigned character, or with text in the wrong encoding.",
        "Decode the texts with the encoding in which they were written, and write them as UTF-8.",
    ),
    TextCheck(
        "digits",
        _named(DIGITS),
        Severity.WARNING,
        "with digits, although most texts have no digits; digits do not show how a number is spoken.",
        "Write numbers as they are spoken, in the same way in all splits.",
    ),
)


def character_findings(splits: Splits) -> list[Finding]:
    """Report texts that fail one of the `CHECKS`.

    Args:
        splits: utterances with texts before normalisation.
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
        if not cases or (check.kind == "digits" and len(cases) > MAX_DIGIT_SHARE * total):
            continue
        message = f"{share(cases, splits)} {check.meaning}"
        findings.append(Finding(check.kind, check.severity, message, check.advice, cases))
    return findings
