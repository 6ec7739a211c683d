"""The epochs of a run: their plans, and the run's position after a number of batches."""

from collections.abc import Callable
from dataclasses import replace

from asr.data.epoch_plan import EpochPlan
from asr.data.position import Position, Share, start_of_epoch


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
        self._make_plan, self._number = plan, number
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
        share = len(plan.plan.order) / self._number  # fraction of the epoch in its current part
        return epoch + 1 - share * (1 - batches / len(plan))
