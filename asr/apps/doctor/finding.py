"""Findings: problems of a corpus or of a training plan, each with the affected utterances."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asr.base.text.numbers import counted
from asr.base.text.printable import NAMED, printable
from asr.core.data.manifest import Utterance
from asr.errors import InputError

Splits = Mapping[str, Sequence[Utterance]]  # utterances by the name of their split or test manifest


Fact = tuple[str, str]  # a name and a description of something examined or forecast
OnProgress = Callable[[float], None]  # called with the amount of work done since the last call
Progress = Callable[[str, float], OnProgress]  # called with the name of a task and its amount of work


class Severity(IntEnum):
    """Severity of a finding, from most to least severe."""

    ERROR = 0  # training should not start
    WARNING = 1  # the problem increases the WER, or makes a result less meaningful
    NOTE = 2  # the finding is only information


@dataclass(frozen=True, slots=True)
class Case:
    """An utterance that has the problem of a finding.

    Args:
        split: split of the utterance.
        utterance: utterance as in the manifest.
        detail: description of the problem; may be empty.
    """

    split: str
    utterance: Utterance
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A definite or possible problem of a corpus or of a training plan.

    Args:
        kind: name of the problem.
        severity: severity of the problem.
        message: how many utterances are affected, and what this means for training.
        advice: what to do.
        cases: the affected utterances, worst utterance first.
    """

    kind: str
    severity: Severity
    message: str
    advice: str
    cases: Sequence[Case] = ()

    def lines(self) -> list[str]:
        """Return lines for a terminal: the finding, the first utterances, the number of the others, the advice."""
        lines = [f"{self.severity.name.lower()}: {self.kind}: {self.message}"]
        for case in self.cases[:NAMED]:
            detail = f": {case.detail}" if case.detail else ""
            lines.append(f"  {case.split}: {case.utterance.id}{detail}")
        if len(self.cases) > NAMED:
            lines.append(f"  and {len(self.cases) - NAMED:,} more")
        return [*map(printable, lines), f"  -> {self.advice}"]


def share(cases: Sequence[Case], splits: Splits, noun: str = "utterance") -> str:
    """Describe the number of cases, for example "3 utterances (2 of 10 in train; 1 of 5 in valid)"."""
    parts = []
    for split, utterances in splits.items():
        if count := sum(case.split == split for case in cases):
            parts.append(f"{count:,} of {len(utterances):,} in {split}")
    total = len(cases)
    return f"{total:,} {noun}{'' if total == 1 else 's'} ({'; '.join(parts)})"


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Refuse a training that has a finding of the severity ERROR, after the findings were printed."""
    kinds = [finding.kind for finding in findings if finding.severity == Severity.ERROR]
    if kinds:
        must = f"training should not start; {counted(len(kinds), 'finding')} above must be corrected"
        raise InputError(f"{must}: {', '.join(kinds)}.")
