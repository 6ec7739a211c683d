"""The Lightning data module: the loaders that carry out each epoch's plan."""

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Sampler

from asr.data.batch import Batch, collate
from asr.data.batch_plan import BatchSampler, plan_evaluation
from asr.data.dataset import Augmentation, Item, SpeechDataset
from asr.data.epoch_plan import EpochSampler
from asr.data.epochs import Epochs
from asr.data.position import Position
from asr.data.seeds import derive_seed
from asr.data.training_set import TrainingSet
from asr.data.waveforms import WaveformBatch, WaveformFeatures, collate_waveforms, without_features
from asr.features.batched.front_end import FrontEnd
from asr.text.printable import listed
from asr.training.signals import SIGNALS
from asr.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from asr.data.manifest import Utterance

logger = logging.getLogger(__name__)


class SpeechData(pl.LightningDataModule):
    """Training and validation batches.

    The trainer must ask for the training loader each epoch (`reload_dataloaders_every_n_epochs=1`): it is the same
    loader each time, whose processes live until the fit ends, and it then carries out the plan of that epoch.
    `waiting` runs while the training process waits for a training batch.

    Args:
        training_set: what to train on, and in which batches.
        valid: utterances to validate on, texts normalised.
        augmentation: of the training utterances.
        position: where the run begins, or is resumed.
        num_workers: processes that decode and featurise; 0: the training process itself. A validation has as many of
            its own, which end with it.
        features_on: device: those of training utterances are computed where the net is, for a batch at once; cpu: by
            those processes.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        valid: "Sequence[Utterance]",
        augmentation: Augmentation,
        position: Position,
        num_workers: int,
        features_on: str = "cpu",
    ) -> None:
        super().__init__()
        for reason, dropped in training_set.dropped.items():
            count = f"{len(dropped)} of {training_set.num_given} training utterances"
            logger.warning("dropped %s: %s (%s)", count, reason, listed(dropped.ids))
        self.waiting = Stopwatch()
        self._training_set, self._num_workers = training_set, num_workers
        features, reference = training_set.features, training_set.reference
        if reference.views > 1 and not augmentation.features:
            what = "are alike but for dropout, since no augmentation masks features; add augment=[..., spec_augment]"
            logger.warning("the %d views of an utterance %s", reference.views, what)
        self._front_end = FrontEnd(features) if features_on == "device" else None
        self._collate: Callable[[Any], Any] = partial(collate, lengths=training_set.settings.lengths)
        of_waveform: Any = features
        if self._front_end is not None:
            of_waveform, augmentation = WaveformFeatures(features), without_features(augmentation, features.dim)
            self._collate = partial(collate_waveforms, lengths=training_set.settings.lengths)
            logger.info("features of training batches are computed where the net is: data.features_on=device")
        if (per_doubling := training_set.settings.lengths.lengths_per_doubling) is not None:
            logger.info("training batches are padded to few lengths: data.lengths_per_doubling=%d", per_doubling)
        self._train = SpeechDataset(training_set.utterances, of_waveform, reference, augmentation, training_set.seed)
        self._valid = SpeechDataset(valid, features, reference.for_evaluation())
        self.epochs = Epochs(training_set.epoch, len(training_set.mixture), position)
        self._current_epoch = _CurrentEpoch()
        self._train_loader = self._loader(self._train, self._current_epoch, self.waiting, self._collate, lives_on=True)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Lightning's hook, called each epoch; the epoch begins where the run does, or is resumed."""
        assert self.trainer is not None
        position = self.epochs.stretch(self.trainer.current_epoch, self.trainer.world_size)
        plan = self.epochs.plan(position)
        if plan.kept_speed and plan.epoch == self.epochs.begin.epoch:  # said once
            what = "keep speed 1.0, since at the factor drawn their frames would be too few, or their batch too long"
            logger.info("epoch %d: %d of %d utterances %s", plan.epoch + 1, plan.kept_speed, len(self._train), what)
        self._current_epoch.batches = EpochSampler(plan, self.trainer.global_rank, position.batch)
        return self._train_loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """Lightning's hook."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        durations = [utterance.duration for utterance in self._valid.utterances]
        batches = plan_evaluation(durations, self._training_set.settings.batches, rank=rank, world_size=world_size)
        return self._loader(self._valid, BatchSampler(batches), Stopwatch())

    def transfer_batch_to_device(
        self, batch: Batch | WaveformBatch, device: torch.device, dataloader_idx: int
    ) -> Batch | WaveformBatch:
        """Lightning's hook; a copy out of page-locked memory is waited for by the device alone."""
        return batch.to(device, non_blocking=device.type == "cuda")

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Batch | WaveformBatch, dataloader_idx: int) -> Batch:
        """Lightning's hook; those that are validated have their features."""
        if isinstance(batch, Batch):
            return batch
        assert self._front_end is not None
        device = batch.waveforms.device
        with torch.autocast(device.type, enabled=False):
            return batch.featurised(self._front_end.to(device))

    def worst_batches(self) -> list[Batch]:
        """Make up this rank's part of the largest steps of the epoch that the run begins in, as many as every rank's.

        Sizes and texts are those of the plan, the features are noise: no audio is read.
        """
        assert self.trainer is not None
        plan = self.epochs.plan(self.epochs.stretch(self.epochs.begin.epoch, self.trainer.world_size))
        noise = torch.Generator().manual_seed(derive_seed(self._training_set.seed, "worst batches"))
        steps = [plan.items(step, self.trainer.global_rank) for step in plan.largest()]
        return [self._training_set.made_up(items, noise) for items in steps]

    def _loader(
        self,
        dataset: SpeechDataset,
        sampler: Sampler[list[Item]],
        waiting: Stopwatch,
        collate: Callable[[Any], Any] = collate,
        lives_on: bool = False,
    ) -> DataLoader[Batch]:
        loader = _Loader(
            dataset,  # type: ignore[arg-type]
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=self._num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_start_worker,
            persistent_workers=lives_on and self._num_workers > 0,
        )
        loader.waiting = waiting
        return loader


class _CurrentEpoch(Sampler[list[Item]]):
    """The batches of the epoch in progress: a loader whose processes live through a run has one sampler for all epochs.

    An item names its epoch, so the processes need no notice of a new one.
    """

    batches: EpochSampler

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Item]]:
        return iter(self.batches)


class _Loader(DataLoader[Batch]):
    """A loader that starts its workers when the first batch is asked for.

    Lightning makes two iterators of each epoch's loader and uses the second: workers would be started, and read some
    batches, for nothing.
    """

    waiting: Stopwatch  # runs while somebody waits for a batch

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        with self.waiting:
            batches = super().__iter__()
        while True:
            with self.waiting:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _start_worker(worker: int) -> None:
    logging.getLogger("asr.audio.load").setLevel(logging.ERROR)  # each worker would note conversions anew
    # They may go to all processes of a group or a job. The training process ends its step first, for which it needs
    # its workers; they notice by themselves when it is gone.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
