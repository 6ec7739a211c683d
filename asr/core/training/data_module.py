"""The Lightning data modules: loaders that follow each epoch's batch plan."""

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from asr.base.system.processes import die_with_parent, return_memory, shared_memory, start_method
from asr.base.system.seeds import derive_seed
from asr.base.system.signals import SIGNALS
from asr.base.text.printable import listed
from asr.core.build import build_batched
from asr.core.data.batch import Batch, collate
from asr.core.data.batch_plan import BatchSampler, plan_evaluation
from asr.core.data.dataset import Augmentation, Item, SpeechDataset
from asr.core.data.epoch_plan import Epochs, EpochSampler
from asr.core.data.position import Position
from asr.core.data.training_set import RunBounds, TrainingSet, count_steps
from asr.core.data.waveforms import WaveformBatch, WaveformFeatures, collate_waveforms, without_features
from asr.core.evaluation.manifest_sums import ManifestSums, Reduce
from asr.core.run.names import HOURS_OF, LOSS_OF
from asr.core.training.losses import Losses

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance


logger = logging.getLogger(__name__)


class Stopwatch:
    """Sum the wall-clock seconds spent inside `with stopwatch:`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds += time.monotonic() - self._started

    def take(self) -> float:
        """Return the sum since the last call, and reset it."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class TrainingData(pl.LightningDataModule):
    """Training and validation batches of any objective.

    The trainer must request the training loader each epoch (`reload_dataloaders_every_n_epochs=1`), because the request
    plans the epoch. All epochs share one loader, whose worker processes run until the training ends. The stopwatch
    `waiting` measures the time that the training process waits for batches.

    Args:
        epochs: epochs of the run, which give the run's position to checkpoints and to the schedule.
        train: training examples by item; `valid`: validation examples.
        collate, collate_valid: make a batch from a list of examples.
        num_workers: number of worker processes that load examples; 0: the training process does this work. Each
            validation starts and ends the same number of additional workers.
        max_unreadable: number of examples of an epoch that may be unreadable.
    """

    def __init__(
        self,
        epochs: Epochs,
        train: Dataset[Any],
        valid: Dataset[Any],
        collate: Callable[[Any], Any],
        collate_valid: Callable[[Any], Any],
        num_workers: int = 0,
        max_unreadable: float = 0.0,
    ) -> None:
        super().__init__()
        self.waiting = Stopwatch()
        self.epochs, self.max_unreadable = epochs, max_unreadable
        self._valid, self._collate_valid, self._num_workers = valid, collate_valid, num_workers
        self._current_epoch = _CurrentEpoch()
        self._train_loader = self._loader(train, self._current_epoch, self.waiting, collate, lives_on=True)

    def train_dataloader(self) -> DataLoader[Any]:
        """Plan the current epoch; return its loader, which begins with the batch at which the run starts or resumes."""
        assert self.trainer is not None
        position = self.epochs.first_position(self.trainer.current_epoch, self.trainer.world_size)
        plan = self.epochs.plan(position)
        if plan.kept_speed and plan.epoch == self.epochs.begin.epoch:  # logged once
            reason = "keep speed 1.0: the drawn speed would give too few frames for their text, or too long a batch"
            count = f"{plan.kept_speed} of {len(plan.durations)} utterances"
            logger.info("epoch %d: %s %s", plan.epoch + 1, count, reason)
        self._current_epoch.batches = EpochSampler(plan, self.trainer.global_rank, position.batch)
        return self._train_loader

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Make the loader of this rank's validation batches; without examples, Lightning must get no loader."""
        assert self.trainer is not None
        if not len(self._valid):  # type: ignore[arg-type]  # a Dataset may lack a length, but these have one
            return []
        batches = self.validation_batches(self.trainer.global_rank, self.trainer.world_size)
        return self._loader(self._valid, BatchSampler(batches), Stopwatch(), self._collate_valid)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Copy a batch to the device; a copy from page-locked memory to a GPU is asynchronous."""
        return batch.to(device, non_blocking=device.type == "cuda")

    def worst_batches(self) -> list[Any]:
        """Return this rank's part of the largest steps of the epoch in which the run starts or resumes.

        All ranks return lists of the same length.
        """
        assert self.trainer is not None
        plan = self.epochs.plan(self.epochs.first_position(self.epochs.begin.epoch, self.trainer.world_size))
        return self.made_up([plan.items(step, self.trainer.global_rank) for step in plan.largest()])

    def total_steps(self, step: int, bounds: RunBounds) -> int:
        """Return the number of optimizer steps of the whole run: `step`, which are completed, and those that follow."""
        epochs = self.epochs
        return count_steps(lambda position: len(epochs.plan(position)), epochs.number, epochs.begin, step, bounds)

    def validation_batches(self, rank: int, world_size: int) -> list[list[int]]:
        """Plan the batches of a validation; return this rank's."""
        raise NotImplementedError

    def made_up(self, steps: Sequence[list[Item]]) -> list[Any]:
        """Make batches with the sizes of these items."""
        raise NotImplementedError

    def add_losses(self, batch: Any, losses: Losses) -> None:
        """Add the losses of a training batch to those of its manifests."""

    def losses_by_manifest(self, reduce: Reduce, device: torch.device) -> dict[str, float | None]:
        """Return the loss of each manifest since the last call, by metric; None: it has no loss."""
        return {}

    def hours_by_manifest(self, epochs: float) -> dict[str, float]:
        """Return the hours trained on from each manifest after these epochs, by metric; {} for a single manifest."""
        return {}

    def _loader(
        self,
        dataset: Dataset[Any],
        sampler: Sampler[list[Item]],
        waiting: Stopwatch,
        collate: Callable[[Any], Any],
        lives_on: bool = False,
    ) -> DataLoader[Any]:
        loader = _Loader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=self._num_workers,
            multiprocessing_context=start_method(self._num_workers),
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_start_worker,
            persistent_workers=lives_on and self._num_workers > 0,
        )
        loader.waiting = waiting
        return loader


class SpeechData(TrainingData):
    """Training and validation batches of speech.

    Args:
        training_set: training utterances and their batch plan.
        valid: validation utterances with normalised texts.
        augmentation: augmentation of the training utterances.
        position: position at which the run starts or resumes.
        num_workers: number of worker processes that load audio and compute features; 0: the training process does
            this work. Each validation starts and ends the same number of additional workers.
        features_on: where the features of training batches are computed. "device": on the model's device, a batch at a
            time; "cpu": in the worker processes.
        max_unreadable: number of utterances of an epoch that may be unreadable.
    """

    def __init__(
        self,
        training_set: TrainingSet,
        valid: "Sequence[Utterance]",
        augmentation: Augmentation,
        position: Position,
        num_workers: int,
        features_on: str = "cpu",
        max_unreadable: float = 0.0,
    ) -> None:
        for reason, dropped in training_set.dropped.items():
            count = f"{len(dropped)} of {training_set.num_given} training utterances"
            logger.warning("dropped %s: %s (%s)", count, reason, listed(dropped.ids))
        self._training_set, self._valid_utterances = training_set, valid
        features, reference = training_set.features, training_set.reference
        if reference.views > 1 and not augmentation.features:
            problem = "differ only by dropout, because no augmentation masks features; add augment=[..., spec_augment]"
            logger.warning("the %d views of an utterance %s", reference.views, problem)
        self._front_end = build_batched(features) if features_on == "device" else None
        of_batch: Callable[[Any], Any] = partial(collate, labels=reference.labels)
        of_waveform: Any = features
        if self._front_end is not None:
            of_waveform, augmentation = WaveformFeatures(features), without_features(augmentation, features.dim)
            of_batch = partial(collate_waveforms, labels=reference.labels)
            logger.info("features of training batches are computed on the model's device: data.features_on=device")
        if num_workers:
            logger.info("each training process reads audio with data.num_workers=%d processes", num_workers)
        self._epoch_hours = training_set.epoch_hours
        self._of_manifests = ManifestSums(list(self._epoch_hours))  # sums since the last log line
        super().__init__(
            Epochs(training_set.epoch, len(training_set.mixture), position),
            SpeechDataset(training_set.utterances, of_waveform, reference, augmentation, training_set.seed),
            SpeechDataset(valid, features, reference.for_evaluation()),
            of_batch,
            partial(collate, labels=reference.labels),
            num_workers,
            max_unreadable,
        )

    def validation_batches(self, rank: int, world_size: int) -> list[list[int]]:
        """Plan the batches of a validation; return this rank's."""
        durations = [utterance.duration for utterance in self._valid_utterances]
        return plan_evaluation(durations, self._training_set.settings.batches, rank=rank, world_size=world_size)

    def made_up(self, steps: Sequence[list[Item]]) -> list[Batch]:
        """Make batches with these sizes and texts; the features are noise, so no audio is read."""
        noise = torch.Generator().manual_seed(derive_seed(self._training_set.seed, "worst batches"))
        return [self._training_set.made_up(items, noise) for items in steps]

    def add_losses(self, batch: Batch, losses: Losses) -> None:
        """Add the losses of a training batch to those of its manifests."""
        self._of_manifests.add(batch.utterances, losses.loss, losses.units)

    def losses_by_manifest(self, reduce: Reduce, device: torch.device) -> dict[str, float | None]:
        """Return the loss of each manifest since the last call, by metric; None: it has no loss."""
        return {f"{LOSS_OF}{name}": rates.loss for name, rates in self._of_manifests.take(reduce, device).items()}

    def hours_by_manifest(self, epochs: float) -> dict[str, float]:
        """Return the hours trained on from each manifest after these epochs, by metric; {} for a single manifest."""
        return {f"{HOURS_OF}{name}": epochs * self._epoch_hours[name] for name in self._of_manifests.names}

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Batch | WaveformBatch, dataloader_idx: int) -> Batch:
        """Compute features of waveforms on the device; validation batches already have features."""
        if isinstance(batch, Batch):
            return batch
        assert self._front_end is not None
        device = batch.waveforms.device
        with torch.autocast(device.type, enabled=False):
            return batch.featurised(self._front_end.to(device))


class _CurrentEpoch(Sampler[list[Item]]):
    """The batches of the current epoch. A loader with persistent workers has one sampler for all epochs.

    Each item contains its epoch, so workers need not be notified of a new epoch.
    """

    batches: EpochSampler

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Item]]:
        return iter(self.batches)


class _Loader(DataLoader[Any]):
    """A loader that starts its workers when the first batch is requested.

    Lightning makes two iterators of each epoch's loader and uses only the second one. With this loader, the
    workers of the first iterator never start, so they do not read batches in vain.
    """

    waiting: Stopwatch  # runs while the consumer waits for a batch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with self.waiting, shared_memory():
            batches = super().__iter__()
        while True:
            with self.waiting:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def _start_worker(worker: int) -> None:
    logging.getLogger("asr.base.audio.load").setLevel(
        logging.ERROR
    )  # otherwise each worker would log conversions again
    return_memory()
    # If the parent process were killed, torch's workers would hang once their pipe to the parent is full, because the
    # workers themselves hold the pipe's other end.
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
    # A signal may be sent to all processes of a group or a job. The workers ignore it, because the training process
    # needs them to complete its step.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
