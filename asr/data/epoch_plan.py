"""The plan of an epoch: its batches, how large they are, and each rank's share of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Sampler

from asr.data.batch_plan import Plan, Texts
from asr.data.dataset import Item
from asr.data.mixture import Occurrences
from asr.data.position import Position
from asr.errors import InputError


@dataclass(frozen=True)
class BatchSize:
    """How much a batch holds: its longest utterance times their number, and their number."""

    padded_seconds: float
    utterances: int


@dataclass(frozen=True)
class PlanSummary:
    """A plan in numbers.

    Args:
        steps: batches of each rank.
        batches: of all ranks.
        utterances: in them.
        hours: of audio, at the speeds at which it is played.
        padding: part of the padded seconds that is no audio.
        shortest: the batch of fewest padded seconds.
        longest: the batch of most padded seconds.
    """

    steps: int
    batches: int
    utterances: int
    hours: float
    padding: float
    shortest: BatchSize
    longest: BatchSize


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch, or of the rest of one; `len()` is the number of steps, each rank's batches.

    Args:
        epoch: from 0.
        plan: which occurrences of utterances are in which batch.
        occurrences: of utterances, M of them.
        durations: seconds of every occurrence at its factor, at most, (M,) float64.
        padded: seconds to which each is padded as the longest of its batch, (M,) float64.
        factors: of speed, (M,) float64.
        kept_speed: utterances of the epoch that keep speed 1.0, since at the factor drawn their frames would be too
            few or their batch too long.
        texts: of every occurrence; None: they add nothing to the size of a batch.
    """

    epoch: int
    plan: Plan
    occurrences: Occurrences
    durations: Tensor
    padded: Tensor
    factors: Tensor
    kept_speed: int
    texts: Texts | None = None

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def num_bytes(self) -> int:
        """Bytes of its columns."""
        columns = [self.plan.order, self.plan.edges, self.plan.steps, *self.occurrences]
        columns += [self.durations, self.padded, self.factors, *([self.texts.num_tokens] if self.texts else [])]
        return sum({column.data_ptr(): column.untyped_storage().nbytes() for column in columns}.values())

    def items(self, step: int, rank: int) -> list[Item]:
        """Return the utterances of one batch."""
        indices = self.plan.batch(step, rank)
        columns = self.occurrences.positions, self.factors, self.occurrences.repeats
        return [Item(self.epoch, *values) for values in zip(*(each[indices].tolist() for each in columns), strict=True)]

    def largest(self) -> list[int]:
        """Return the steps with the batch of most padded seconds, of most seconds squared, and of most cells."""
        longest, sizes = self.plan.longest(self.padded), self.plan.sizes()
        measures = [longest, longest * longest]
        if self.texts is not None:
            measures.append(self.texts.cells(longest, self.plan.longest(self.texts.num_tokens)))
        most = [int((measure * sizes).amax(dim=1).argmax()) for measure in measures]
        return sorted(set(most))

    def summary(self) -> PlanSummary:
        """Count and measure the batches of all ranks."""
        longest, sizes = self.plan.longest(self.padded).flatten(), self.plan.sizes().flatten()
        padded = longest * sizes
        seconds = float(self.durations[self.plan.order].sum())
        least, most = int(padded.argmin()), int(padded.argmax())
        return PlanSummary(
            steps=len(self),
            batches=len(sizes),
            utterances=len(self.plan.order),
            hours=seconds / 3600,
            padding=1 - seconds / float(padded.sum()),
            shortest=BatchSize(float(padded[least]), int(sizes[least])),
            longest=BatchSize(float(padded[most]), int(sizes[most])),
        )


def plan_stretch(number: int, position: Position, plan: Callable[[Tensor, int, int], Plan]) -> Plan:
    """Plan the stretch of an epoch that `position` is in, whole: from its first batch on.

    What the earlier stretches of the epoch have seen is left out; the rest is planned for as many ranks as there are
    now.

    Args:
        number: of occurrences of utterances in the epoch.
        position: in the epoch.
        plan: indices of those that are left, number of ranks and of the stretch to its plan, by places in `left`.

    Raises:
        InputError: the position is not one of this training set, or fewer utterances are left than ranks.
    """
    left = torch.arange(number)
    for part, share in enumerate(position.shares):
        if part > 0 and len(left) < share.world_size:
            given = f"got {len(left)} utterances that are left of epoch {position.epoch + 1}"
            must = f"each process needs an utterance; {given}, for {share.world_size} processes"
            raise InputError(f"{must}. Resume with {max(1, len(left))} or fewer.")
        planned = plan(left, share.world_size, part)
        planned = replace(planned, order=left[planned.order])
        if share.batches > len(planned):
            done = f"got {share.batches} batches done of {len(planned)} in epoch {position.epoch + 1}"
            must = "a run must be resumed with the data it was begun with"
            raise InputError(f"{must}; {done}. Take the same manifests.")
        if part < len(position.shares) - 1:
            seen = torch.zeros(number, dtype=torch.bool)
            seen[planned.first_steps(share.batches)] = True
            left = left[~seen[left]]
    return planned


class EpochSampler(Sampler[list[Item]]):
    """Hand one rank's batches to a DataLoader, from batch `start` on; `len()` counts those before it too."""

    def __init__(self, epoch: EpochPlan, rank: int, start: int = 0) -> None:
        self.epoch = epoch
        self.rank = rank
        self.start = start

    def __len__(self) -> int:
        return len(self.epoch)

    def __iter__(self) -> Iterator[list[Item]]:
        for step in range(self.start, len(self.epoch)):
            yield self.epoch.items(step, self.rank)
