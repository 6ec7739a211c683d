"""Findings: problems of a corpus or of a training plan, each with the utterances concerned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asr.data.manifest import Utterance
from asr.text.printable import NAMED, printable

Splits = Mapping[str, Sequence[Utterance]]  # by the name of the split, or of the test manifest


Fact = tuple[str, str]  # name, description
Advance = Callable[[float], None]  # called with the amount of work done since the last call
Progress = Callable[[str, float], Advance]  # called with the name of a task and its amount of work


class Severity(IntEnum):
    """Severity of a finding, in decreasing order."""

    ERROR = 0  # training should not start
    WARNING = 1  # increases the WER, or makes a result less meaningful
    NOTE = 2  # for information


@dataclass(frozen=True, slots=True)
class Case:
    """An utterance that a finding concerns.

    Args:
        split: of the utterance.
        utterance: as the manifest has it.
        detail: description of the problem; may be empty.
    """

    split: str
    utterance: Utterance
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a possible one.

    Args:
        kind: name of the problem.
        severity: severity of the problem.
        message: how many utterances are concerned, and what this means for training.
        advice: what to do.
        cases: the utterances concerned, worst utterance first.
    """

    kind: str
    severity: Severity
    message: str
    advice: str
    cases: Sequence[Case] = ()

    def lines(self) -> list[str]:
        """Return lines for a terminal: the finding, the first few utterances, the number of others, the advice."""
        lines = [f"{self.severity.name.lower()}: {self.kind}: {self.message}"]
        for case in self.cases[:NAMED]:
            detail = f": {case.detail}" if case.detail else ""
            lines.append(f"  {case.split}: {case.utterance.id}{detail}")
        if len(self.cases) > NAMED:
            lines.append(f"  and {len(self.cases) - NAMED:,} more")
        return [*map(printable, lines), f"  -> {self.advice}"]


def share(cases: Sequence[Case], splits: Splits, noun: str = "utterance") -> str:
    """Describe the number of cases, in total and relative to all utterances of each split with cases."""
    parts = []
    for split, utterances in splits.items():
        if count := sum(case.split == split for case in cases):
            parts.append(f"{count:,} of {len(utterances):,} in {split}")
    total = len(cases)
    return f"{total:,} {noun}{'' if total == 1 else 's'} ({'; '.join(parts)})"
