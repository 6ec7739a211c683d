"""Errors for the user, tested by what they name: setting, value and cure. Their wording is in tests/messages.txt."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import CompletedProcess
from typing import TypeVar

import pytest

from asr.base.settings.conf import default_settings, names
from asr.base.settings.read import settings_of
from asr.base.settings.rule import Rule
from asr.core.build import rules_of
from asr.core.run.settings import RunSettings
from asr.errors import shown
from tests.conftest import ROOT

E = TypeVar("E", bound=BaseException)
UNSAID = object()
SENTENCE = re.compile(r"[A-Za-z]+(,? [A-Za-z]+){3}")  # four words in a row
EDGE = r"(?:(?<!\d)|(?!\d))"  # not within a number


@contextmanager
def refused(error: type[E], named: str, *, got: object = UNSAID, cure: str = "") -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error in one line that ends with a stop, or with a command to copy.

    Args:
        error: class of the error.
        named: names in the message, such as "encoder.dim"; several as in "train.jsonl:3 ... duration", in the order of
            the message; with the value that the message shows as in "encoder.dim; got -1".
        got: the value, unless `named` has it. If it breaks the setting's rule, the message must have the rule's words.
        cure: option, key or command that the message recommends.
    """
    with pytest.raises(error) as raised:
        yield raised
    check_refusal(str(raised.value), named, got=got, cure=cure)


def check_ended(ended: "CompletedProcess[str]", named: str, *, got: object = UNSAID, cure: str = "") -> None:
    """Check that a command ended with such an error as its only output to stderr."""
    assert (ended.returncode, ended.stderr[:7]) == (1, "error: "), ended.stderr
    check_refusal(ended.stderr, named, got=got, cure=cure)


def check_refusal(message: str, named: str, *, got: object = UNSAID, cure: str = "") -> None:
    """Check the message of such an error; a final line break is allowed."""
    setting, _, value = named.partition("; got ")
    value = value if got is UNSAID else shown(got)
    assert re.fullmatch(rf".*([.?']|{re.escape(cure or '.')})\n?", message), message
    assert all(mentions(message, part) for part in (setting, value, cure)), message
    with suppress(ValueError, SyntaxError):  # a value that Python cannot read is not checked
        given, rules = ast.literal_eval(value), list(_rules(setting))
        holds = any(rule.holds(given) or rule.holds([given]) for rule in rules)
        assert holds or not rules or any(rule.words in message for rule in rules), message


def mentions(text: str, named: str) -> bool:
    """Return whether a line of a text has these names in this order; see `refused`."""
    assert not SENTENCE.search(named), f"name settings and values instead of quoting a sentence: {named}"
    parts = re.split(r" \.\.\. |; got ", named)
    return re.search(".*".join(EDGE + re.escape(part) + EDGE for part in parts), text) is not None


def _rules(setting: str) -> Iterator[Rule]:
    """Yield the rules of a setting of a run, or of the components that have it, such as encoder.dim."""
    section, _, key = setting.rpartition(".")
    for entry in settings_of(RunSettings):
        if section in ("", entry.key):
            inside = settings_of(entry.type) if section else [entry]
            yield from (inner.rule for inner in inside if inner.rule and inner.key == key)
    group = section.replace(".", "/")
    for name in names(group) if group and (ROOT / "asr" / group).is_dir() else []:
        component = default_settings(group, name).get("name")
        yield from (rule for of, rule in (rules_of(group, component) if component else {}).items() if of == key)
