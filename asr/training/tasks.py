"""What the Trainer's helpers ask of a Lightning module, be it of a recogniser or of a language model."""

from typing import Any, ClassVar, Protocol

from asr.data.epochs import Epochs


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
    """A Lightning data module that is trained on."""

    epochs: Epochs  # of the run: checkpoints and the schedule ask it where the run is
