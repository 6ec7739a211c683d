"""The data module of a training on texts."""

from collections.abc import Sequence

from torch.utils.data import Dataset

from asr.apps.language_models.text_set import Sentences, TextBatch, TextSet
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.dataset import Item
from asr.core.data.epoch_plan import Epochs
from asr.core.data.position import Position
from asr.core.training.data_module import TrainingData


class TextData(TrainingData):
    """Training and validation batches of texts. All texts are in memory, so there are no worker processes.

    Args:
        train: training texts and their batch plan.
        valid: validation texts.
        bounds: limits of the size of validation batches.
        position: position at which the run starts or resumes.
    """

    def __init__(self, train: TextSet, valid: Sentences, bounds: BatchBounds, position: Position) -> None:
        self._sentences, self._valid_sentences, self._bounds = train.sentences, valid, bounds
        epochs = Epochs(train.epoch, len(train), position)
        super().__init__(epochs, _Rows(len(train)), _Rows(len(valid)), train.sentences.batch, valid.batch)

    def validation_batches(self, rank: int, world_size: int) -> list[list[int]]:
        """Plan the batches of a validation; return this rank's."""
        return self._valid_sentences.batches(self._bounds, rank, world_size)

    def made_up(self, steps: Sequence[list[Item]]) -> list[TextBatch]:
        """Return the batches of these items."""
        return [self._sentences.batch([item.row for item in items]) for items in steps]


class _Rows(Dataset[int]):
    """Rows of sentences; `Sentences.batch` makes a batch from a list of rows.

    Args:
        number: number of sentences.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, item: Item) -> int:
        return item.row
