"""Where a run is in its training data: what a checkpoint keeps, so that a run is resumed with the very next batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Share(NamedTuple):
    """A stretch of an epoch that was planned for so many processes, and the batches that each of them has done."""

    world_size: int
    batches: int


@dataclass(frozen=True)
class Position:
    """Before the next batch of an epoch.

    Args:
        epoch: from 0.
        shares: the stretches of this epoch, in their order; the last is the present one. There is more than
            one only where the number of processes has changed within the epoch.
        skipped: utterances of this epoch that could not be read so far, over all processes.
    """

    epoch: int
    shares: tuple[Share, ...]
    skipped: int = 0

    @property
    def batch(self) -> int:
        """Batches that each process has done in the present stretch."""
        return self.shares[-1].batches

    @property
    def world_size(self) -> int:
        """Processes of the present stretch."""
        return self.shares[-1].world_size

    def on(self, world_size: int) -> Position:
        """Return the same place, for so many processes."""
        if world_size == self.world_size:
            return self
        begun = tuple(share for share in self.shares if share.batches)
        return Position(self.epoch, (*begun, Share(world_size, 0)), self.skipped)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain types, as a checkpoint holds it."""
        return {"epoch": self.epoch, "shares": [list(share) for share in self.shares], "skipped": self.skipped}

    @classmethod
    def from_dict(cls, state: dict[str, object]) -> Position:
        """Return what `as_dict` gave."""
        shares = tuple(Share(*share) for share in state["shares"])  # type: ignore[attr-defined]
        return cls(int(state["epoch"]), shares, int(state["skipped"]))  # type: ignore[call-overload]


def start_of_epoch(epoch: int, world_size: int) -> Position:
    """Return the place before the first batch of an epoch."""
    return Position(epoch, (Share(world_size, 0),))
