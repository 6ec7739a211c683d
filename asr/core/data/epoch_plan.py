"""The plan of an epoch: the batches of each rank, and their sizes; the epochs of a run, and its position in them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Sampler

from asr.core.data.batch_plan import Plan, Speeds, Texts
from asr.core.data.dataset import Item
from asr.core.data.mixture import Occurrences
from asr.core.data.position import Position, Share, start_of_epoch
from asr.errors import InputError


@dataclass(frozen=True)
class BatchSize:
    """Size of a batch: padded seconds (longest duration times number of utterances), and number of utterances."""

    padded_seconds: float
    utterances: int


@dataclass(frozen=True)
class PlanSummary:
    """Statistics of a plan.

    Args:
        steps: number of batches per rank.
        batches: number of batches of all ranks.
        utterances: number of utterances in the batches.
        hours: hours of audio, after speed perturbation.
        padding: padding, as a fraction of the padded seconds.
        shortest: the batch with the fewest padded seconds.
        longest: the batch with the most padded seconds.
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
    """The batches of an epoch or of one of its parts; `len()` is the number of steps (batches per rank).

    Args:
        epoch: number of the epoch, from 0.
        plan: plan of the batches; its indices refer to occurrences.
        occurrences: the M occurrences of utterances in the epoch.
        durations: duration of every occurrence at its speed factor, plus the maximum that augmentation adds, in
            seconds, (M,) float64.
        speeds: speed factor of every occurrence.
        kept_speed: number of utterances that keep speed 1.0, because with the drawn factor they would have too few
            frames or their batch would be too long.
        texts: texts of the occurrences; None: texts do not influence the size of a batch.
    """

    epoch: int
    plan: Plan
    occurrences: Occurrences
    durations: Tensor
    speeds: Speeds
    kept_speed: int
    texts: Texts | None = None

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def num_bytes(self) -> int:
        """Size of the columns in bytes."""
        columns = [self.plan.order, self.plan.edges, self.plan.steps, *self.occurrences]
        columns += [self.durations, self.speeds.numbers, *([self.texts.num_tokens] if self.texts else [])]
        return sum({column.data_ptr(): column.untyped_storage().nbytes() for column in columns}.values())

    def items(self, step: int, rank: int) -> list[Item]:
        """Return the utterances of one batch."""
        indices = self.plan.batch(step, rank)
        positions, repeats = (column[indices].tolist() for column in self.occurrences)
        columns = positions, self.speeds.of(indices).tolist(), repeats
        return [Item(self.epoch, *values) for values in zip(*columns, strict=True)]

    def largest(self) -> list[int]:
        """Return the steps that contain the largest batches.

        One has the most padded seconds, one the most squared seconds and, if texts count, one the most elements in the
        head's largest tensor (`data.max_cells`).
        """
        longest, sizes = self.plan.longest(self.durations), self.plan.sizes()
        measures = [longest, longest * longest]
        if self.texts is not None:
            measures.append(self.texts.cells(longest, self.plan.longest(self.texts.num_tokens)))
        most = [int((measure * sizes).amax(dim=1).argmax()) for measure in measures]
        return sorted(set(most))

    def summary(self) -> PlanSummary:
        """Compute the statistics of all ranks' batches."""
        longest, sizes = self.plan.longest(self.durations).flatten(), self.plan.sizes().flatten()
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


def plan_current_part(number: int, position: Position, plan: Callable[[Tensor | slice, int, int], Plan]) -> Plan:
    """Plan the part of an epoch that contains `position`; the plan begins with the first batch of that part.

    An epoch has several parts if the number of ranks changed within the epoch. A part consists of the utterances that
    earlier parts have not used, planned for the part's number of ranks.

    Args:
        number: number of occurrences of utterances in the epoch.
        position: a position in the epoch.
        plan: makes the plan of a part from the indices of the unused occurrences (a slice if all are unused), the
            number of ranks, and the number of the part. `order` in this plan contains indices into the first argument.
    """
    left: Tensor | None = None  # indices of unused occurrences; None: all are unused
    for part, share in enumerate(position.shares):
        if left is not None and len(left) < share.world_size:
            given = f"epoch {position.epoch + 1} has {len(left)} utterances left for {share.world_size} processes"
            must = "each process must have at least one utterance"
            raise InputError(f"{must}; {given}. Resume with at most {max(1, len(left))} processes.")
        planned = plan(slice(None) if left is None else left, share.world_size, part)
        if left is not None:
            planned = replace(planned, order=left[planned.order])
        if share.batches > len(planned):
            done = f"got {share.batches} completed batches of {len(planned)} in epoch {position.epoch + 1}"
            must = "a run must be resumed with its original data"
            raise InputError(f"{must}; {done}. Use the original manifests.")
        if part < len(position.shares) - 1:
            is_left = torch.ones(number, dtype=torch.bool)
            is_left[planned.first_steps(share.batches)] = False
            left = is_left.nonzero()[:, 0].int() if left is None else left[is_left[left]]
    return planned


class EpochSampler(Sampler[list[Item]]):
    """Yield one rank's batches, beginning with number `start`, for a DataLoader; `len()` counts all batches."""

    def __init__(self, epoch: EpochPlan, rank: int, start: int = 0) -> None:
        self.epoch = epoch
        self.rank = rank
        self.start = start

    def __len__(self) -> int:
        return len(self.epoch)

    def __iter__(self) -> Iterator[list[Item]]:
        for step in range(self.start, len(self.epoch)):
            yield self.epoch.items(step, self.rank)


class Epochs:
    """The plans of a run's epochs, from the position at which the run starts or resumes.

    Args:
        plan: makes a plan of the part of an epoch that contains a position. The plan begins with the first batch of
            that part, not at the position.
        number: number of occurrences of utterances in an epoch.
        begin: position at which the run starts or resumes.
    """

    def __init__(self, plan: Callable[[Position], EpochPlan], number: int, begin: Position) -> None:
        self.begin = begin
        self.number = number
        self._make_plan = plan
        self._planned: tuple[Position, EpochPlan] | None = None  # the last plan, which several callers request

    def first_position(self, epoch: int, world_size: int) -> Position:
        """Return the position in an epoch at which this run starts or resumes; usually the start of the epoch."""
        return self.begin.on(world_size) if self.begin.epoch == epoch else start_of_epoch(epoch, world_size)

    def plan(self, position: Position) -> EpochPlan:
        """Plan the part of an epoch that contains a position; the plan begins with the first batch of that part."""
        part = replace(position, shares=(*position.shares[:-1], Share(position.world_size, 0)), skipped=0)
        if self._planned is None or self._planned[0] != part:
            self._planned = (part, self._make_plan(position))
        return self._planned[1]

    def position_at(self, epoch: int, world_size: int, batch: int, skipped: int) -> Position:
        """Return the position of the run after each rank has completed `batch` batches of the epoch's current part.

        Args:
            epoch: number of the epoch, from 0.
            world_size: number of ranks.
            batch: number of completed batches per rank in the current part, including batches before a resume with
                the same number of ranks.
            skipped: number of unreadable utterances of the epoch so far, over all ranks.
        """
        position = self.first_position(epoch, world_size)
        if batch == len(self.plan(position)):
            return start_of_epoch(epoch + 1, position.world_size)
        return Position(epoch, (*position.shares[:-1], Share(position.world_size, batch)), skipped)

    def done(self, epoch: int, world_size: int, batches: int) -> float:
        """Return the number of completed epochs, including the completed fraction of `epoch`.

        Args:
            epoch: number of the epoch, from 0.
            world_size: number of ranks.
            batches: number of completed batches per rank in the epoch's current part.
        """
        if batches == 0:
            return float(epoch)
        plan = self.plan(self.first_position(epoch, world_size))
        share = len(plan.plan.order) / self.number  # fraction of the epoch in its current part
        return epoch + 1 - share * (1 - batches / len(plan))
