"""The Lightning data module for texts: loaders that follow each epoch's batch plan."""

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Dataset

from asr.data.batch_plan import BatchBounds, BatchSampler
from asr.data.dataset import Item
from asr.data.epoch_plan import EpochSampler
from asr.data.epochs import Epochs
from asr.data.position import Position
from asr.data.text_set import Sentences, TextBatch, TextSet


class TextData(pl.LightningDataModule):
    """Training and validation batches of texts. All texts are in memory, so there are no worker processes.

    The trainer must request a new training loader each epoch (`reload_dataloaders_every_n_epochs=1`).

    Args:
        train: training texts and their batch plan.
        valid: validation texts.
        bounds: limits of the size of validation batches.
        position: position at which the run starts or resumes.
    """

    def __init__(self, train: TextSet, valid: Sentences, bounds: BatchBounds, position: Position) -> None:
        super().__init__()
        self._train, self._valid, self._bounds = train, valid, bounds
        self.epochs = Epochs(train.epoch, len(train), position)

    def train_dataloader(self) -> DataLoader[TextBatch]:
        """Make the loader of the current epoch, which begins with the batch at which the run starts or resumes."""
        assert self.trainer is not None
        position = self.epochs.first_position(self.trainer.current_epoch, self.trainer.world_size)
        sampler = EpochSampler(self.epochs.plan(position), self.trainer.global_rank, position.batch)
        return _loader(self._train.sentences, sampler)

    def val_dataloader(self) -> DataLoader[TextBatch]:
        """Make the loader of this rank's validation batches."""
        assert self.trainer is not None
        batches = self._valid.batches(self._bounds, self.trainer.global_rank, self.trainer.world_size)
        return _loader(self._valid, BatchSampler(batches))

    def worst_batches(self) -> list[TextBatch]:
        """Return this rank's part of the largest steps of the epoch in which the run starts or resumes."""
        assert self.trainer is not None
        plan = self.epochs.plan(self.epochs.first_position(self.epochs.begin.epoch, self.trainer.world_size))
        steps = [plan.items(step, self.trainer.global_rank) for step in plan.largest()]
        return [self._train.sentences.batch([item.row for item in items]) for items in steps]


class _Places(Dataset[int]):
    """Positions of sentences; `Sentences.batch` makes a batch from a list of positions."""

    def __getitem__(self, item: Item) -> int:
        return item.row


def _loader(sentences: Sentences, sampler: EpochSampler | BatchSampler) -> DataLoader[TextBatch]:
    return DataLoader(_Places(), batch_sampler=sampler, collate_fn=sentences.batch)  # type: ignore[arg-type]
