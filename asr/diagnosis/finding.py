"""What is said against a corpus, or a plan to train on it: findings, each with the utterances concerned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asr.data.manifest import Utterance
from asr.text.printable import NAMED, printable

Splits = Mapping[str, Sequence[Utterance]]  # by the name of the split, or of the test manifest


Fact = tuple[str, str]  # its name, and what there is to say
Advance = Callable[[float], None]  # is told how much more is done
Progress = Callable[[str, float], Advance]  # is told what is done, and how much of it there is


class Severity(IntEnum):
    """How bad a finding is, the worst first."""

    ERROR = 0  # training should not start
    WARNING = 1  # it costs words, or makes a result mean less
    NOTE = 2  # worth knowing


@dataclass(frozen=True, slots=True)
class Case:
    """An utterance that a finding concerns.

    Args:
        split: that it is in.
        utterance: as the manifest has it.
        detail: what there is about it; may be empty.
    """

    split: str
    utterance: Utterance
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or may be.

    Args:
        kind: what it is called.
        severity: how bad it is.
        what: how many of how many are concerned, and what it means for training.
        advice: what to do.
        cases: the utterances concerned, the worst first.
    """

    kind: str
    severity: Severity
    what: str
    advice: str
    cases: Sequence[Case] = ()

    def lines(self) -> list[str]:
        """Write it for a terminal: the finding, a few of its utterances by name, the number of the others, advice."""
        lines = [f"{self.severity.name.lower()}: {self.kind}: {self.what}"]
        for case in self.cases[:NAMED]:
            detail = f": {case.detail}" if case.detail else ""
            lines.append(f"  {case.split}: {case.utterance.id}{detail}")
        if len(self.cases) > NAMED:
            lines.append(f"  and {len(self.cases) - NAMED:,} more")
        return [*map(printable, lines), f"  -> {self.advice}"]


def share(cases: Sequence[Case], splits: Splits, noun: str = "utterance") -> str:
    """Say how many there are of how many, in each split that has some."""
    parts = []
    for split, utterances in splits.items():
        if count := sum(case.split == split for case in cases):
            parts.append(f"{count:,} of {len(utterances):,} in {split}")
    total = len(cases)
    return f"{total:,} {noun}{'' if total == 1 else 's'} ({'; '.join(parts)})"
