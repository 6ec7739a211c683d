"""Interfaces of the Lightning modules and data modules, for recognisers and language models."""

from typing import Any, ClassVar, Protocol

from asr.data.epochs import Epochs
from asr.training.line_sums import LineSums


class TrainingTask(Protocol):
    """A Lightning module to train.

    Its steps log `train/loss`; its validations log `valid/loss` and `valid/<measure>`.
    """

    measure: ClassVar[str]  # metric of validations, which selects checkpoints; lower is better
    skipped: int  # number of unreadable utterances of this epoch, over all ranks

    total_steps: int  # planned number of optimizer steps of the whole run
    line: LineSums  # sums over the settled steps since the last line of the log, which replaces them

    def settle(self) -> Any:
        """Synchronise with the device; stop if a loss or gradient since the last call is not finite."""

    def too_large(self) -> str:
        """Return the error message for a batch that does not fit into memory."""


class TrainingData(Protocol):
    """A Lightning data module to train on."""

    epochs: Epochs  # epochs of the run, which give the run's position to checkpoints and to the schedule
