"""The position of a run in its training data; checkpoints store it, so that a run resumes at the next batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Share(NamedTuple):
    """A part of an epoch: the number of processes that it was planned for, and of batches that each has completed."""

    world_size: int
    batches: int


@dataclass(frozen=True)
class Position:
    """The position before the next batch of an epoch.

    Args:
        epoch: number of the epoch, from 0.
        shares: the parts of this epoch, in order; the last is the current part. There are several parts only if the
            number of processes has changed within the epoch.
        skipped: number of unreadable utterances of this epoch so far, over all processes.
    """

    epoch: int
    shares: tuple[Share, ...]
    skipped: int = 0

    @property
    def batch(self) -> int:
        """Number of batches that each process has completed in the current part."""
        return self.shares[-1].batches

    @property
    def world_size(self) -> int:
        """Number of processes in the current part."""
        return self.shares[-1].world_size

    def on(self, world_size: int) -> Position:
        """Return the position from which a run with this number of processes continues."""
        if world_size == self.world_size:
            return self
        begun = tuple(share for share in self.shares if share.batches)
        return Position(self.epoch, (*begun, Share(world_size, 0)), self.skipped)

    def as_dict(self) -> dict[str, object]:
        """Return the position as plain types, for a checkpoint."""
        return {"epoch": self.epoch, "shares": [list(share) for share in self.shares], "skipped": self.skipped}

    @classmethod
    def from_dict(cls, state: dict[str, object]) -> Position:
        """Make a position from the result of `as_dict`."""
        shares = tuple(Share(*share) for share in state["shares"])  # type: ignore[attr-defined]
        return cls(int(state["epoch"]), shares, int(state["skipped"]))  # type: ignore[call-overload]


def start_of_epoch(epoch: int, world_size: int) -> Position:
    """Return the position before the first batch of an epoch."""
    return Position(epoch, (Share(world_size, 0),))
