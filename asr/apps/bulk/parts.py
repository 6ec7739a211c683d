"""Parts: consecutive utterances that a bulk job transcribes and writes together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from asr.core.data.manifest import Utterance
from asr.errors import InputError

SHARE = re.compile(r"(\d+)/(\d+)")
MIN_DIGITS = 5  # minimum number of digits of a part's number in file names


class PartPlan(NamedTuple):
    """Boundaries of the parts.

    Args:
        edges: row of the first utterance of each part, followed by the number of utterances, (number of parts + 1,).
    """

    edges: np.ndarray

    @property
    def num_parts(self) -> int:
        return len(self.edges) - 1

    def rows(self, number: int) -> slice:
        """Return the rows of a part."""
        return slice(int(self.edges[number]), int(self.edges[number + 1]))

    def name(self, number: int) -> str:
        """Return the name of a part without suffix: part-00017."""
        return f"part-{number:0{max(MIN_DIGITS, len(str(self.num_parts - 1)))}d}"

    def seconds(self, durations: Tensor) -> np.ndarray:
        """Sum the durations of each part's utterances, (number of parts,)."""
        return np.add.reduceat(durations.numpy(), self.edges[:-1])


def plan_parts(durations: Tensor, part_seconds: float) -> PartPlan:
    """Group consecutive utterances into parts of about `part_seconds` of audio.

    The total audio, one utterance after another, is divided into intervals of `part_seconds`; the utterances that start
    in the same interval form a part. A part therefore has at most `part_seconds` of audio, plus the length by which its
    last utterance extends beyond the interval.

    Args:
        durations: durations of the utterances in seconds, (N,).
        part_seconds: length of the intervals in seconds.
    """
    seconds = durations.numpy()
    slots = np.floor((seconds.cumsum() - seconds) / part_seconds)
    begins = np.flatnonzero(np.diff(slots, prepend=-1.0))
    return PartPlan(np.append(begins, len(seconds)))


@dataclass(frozen=True)
class PartTask:
    """A part to transcribe, as sent to a worker.

    Args:
        number: number of the part.
        utterances: utterances in the order of the input.
        is_measured: whether the durations were measured from the audio, instead of estimated.
        excluded: ids of utterances whose recognition crashes the process, with the reasons.
    """

    number: int
    utterances: Sequence[Utterance]
    is_measured: bool
    excluded: dict[str, str]


def share_of(text: str | None, num_parts: int) -> range:
    """Return the parts of a share: for `17/400` the 17th, the 417th, the 817th and so on.

    Args:
        text: K/N, with K from 1 to N; None: all parts.
        num_parts: number of parts of the job.
    """
    if text is None:
        return range(num_parts)
    match = SHARE.fullmatch(text)
    index, total = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= total:
        must = "--part must be K/N, the K-th of N shares of the parts, K from 1 to N"
        raise InputError(f"{must}; got {text!r}. In a SLURM array: --part $SLURM_ARRAY_TASK_ID/400.")
    return range(index - 1, num_parts, total)
