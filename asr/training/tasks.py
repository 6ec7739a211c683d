"""What the Trainer's helpers ask of a Lightning module, be it of a recogniser or of a language model."""

from typing import Any, ClassVar, Protocol

from asr.data.position import Position


class TrainingTask(Protocol):
    """A Lightning module that is trained.

    Its validations log `valid/loss` and `valid/<measure>`, its steps `train/loss`.
    """

    measure: ClassVar[str]  # that chooses checkpoints: less is better
    skipped: int  # utterances of this epoch that could not be read, over all ranks

    def settle(self) -> Any:
        """Wait for the steps since the last call, and stop where one is not finite."""

    def too_large(self) -> str:
        """Say that the batch in the works does not fit into memory, and what to do."""


class TrainingData(Protocol):
    """A Lightning data module that the checkpoints ask where it is."""

    def position_at(self, epoch: int, batch: int, skipped: int) -> Position:
        """Return what a checkpoint keeps once each rank has done `batch` batches of the epoch's present stretch."""
