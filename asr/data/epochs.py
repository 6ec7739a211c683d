"""The epochs of a run: where it begins in each, and where it is once so many batches are done."""

from collections.abc import Callable
from dataclasses import replace

from asr.data.epoch_plan import EpochPlan
from asr.data.position import Position, Share, start_of_epoch


class Epochs:
    """The plans of a run's epochs, on `world_size` ranks, from the place where it begins or is resumed.

    Args:
        plan: plans the stretch of an epoch that a position is in, whole.
        number: of occurrences of utterances in an epoch.
        begin: where the run begins.
    """

    def __init__(self, plan: Callable[[Position], EpochPlan], number: int, begin: Position) -> None:
        self.begin = begin
        self._make_plan, self._number = plan, number
        self._planned: tuple[Position, EpochPlan] | None = None  # the last plan; several ask for the same

    def stretch(self, epoch: int, world_size: int) -> Position:
        """Tell where this run begins in an epoch."""
        return self.begin.on(world_size) if self.begin.epoch == epoch else start_of_epoch(epoch, world_size)

    def plan(self, position: Position) -> EpochPlan:
        """Plan the stretch that a position is in, whole."""
        stretch = replace(position, shares=(*position.shares[:-1], Share(position.world_size, 0)), skipped=0)
        if self._planned is None or self._planned[0] != stretch:
            self._planned = (stretch, self._make_plan(position))
        return self._planned[1]

    def position_at(self, epoch: int, world_size: int, batch: int, skipped: int) -> Position:
        """Return what a checkpoint keeps once each rank has done `batch` batches of the epoch's present stretch.

        Args:
            epoch: from 0.
            world_size: number of ranks.
            batch: those included that were done before the run was resumed, with as many ranks.
            skipped: utterances of the epoch that could not be read so far, over all ranks.
        """
        position = self.stretch(epoch, world_size)
        if batch == len(self.plan(position)):
            return start_of_epoch(epoch + 1, position.world_size)
        return Position(epoch, (*position.shares[:-1], Share(position.world_size, batch)), skipped)

    def done(self, epoch: int, world_size: int, batches: int) -> float:
        """Count the passes that are done when `batches` of an epoch's present stretch are; a part of one, too."""
        if batches == 0:
            return float(epoch)
        plan = self.plan(self.stretch(epoch, world_size))
        share = len(plan.plan.order) / self._number  # of the epoch, since there are as many ranks
        return epoch + 1 - share * (1 - batches / len(plan))
