"""The Lightning data module: each epoch's plan, and the loaders that carry it out."""

import logging
from collections.abc import Sequence

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from asr.data.batch import Batch, collate
from asr.data.dataset import Augmentation, Reference, SpeechDataset
from asr.data.sampler import BatchBounds, BatchSampler, draw_factors, plan_evaluation, plan_training
from asr.data.selection import feasible_factors, select
from asr.errors import InputError
from asr.interfaces import Features
from asr.manifest import Utterance

logger = logging.getLogger(__name__)
NAMED = 5  # dropped utterances that are named in the log, of each reason


class SpeechData(pl.LightningDataModule):
    """Training and validation batches.

    The trainer must ask for a new training loader each epoch (`reload_dataloaders_every_n_epochs=1`): a loader
    carries out the plan of one epoch.

    Args:
        train: utterances to train on, texts normalised.
        valid: utterances to validate on, texts normalised.
        features: waveform to features.
        reference: text to tokens.
        augmentation: of the training utterances.
        seed: of plan and augmentation.
        batch_seconds: bound of a batch: longest utterance times number of utterances.
        max_utterances: bound of a batch.
        min_seconds: shorter training utterances are dropped.
        max_seconds: longer training utterances are dropped.
        jitter: how far the sorting by duration is disturbed, so that batch-mates change (`plan_training`).
        num_workers: processes that decode and featurise; 0: the training process itself.
    """

    def __init__(
        self,
        train: Sequence[Utterance],
        valid: Sequence[Utterance],
        features: Features,
        reference: Reference,
        augmentation: Augmentation,
        seed: int,
        *,
        batch_seconds: float,
        max_utterances: int,
        min_seconds: float,
        max_seconds: float,
        jitter: float,
        num_workers: int,
    ) -> None:
        super().__init__()
        self._bounds = BatchBounds(batch_seconds, max_utterances)
        self._jitter, self._seed, self._num_workers = jitter, seed, num_workers
        selection = select(
            train, features, reference, min_seconds=min_seconds, max_seconds=min(max_seconds, batch_seconds)
        )
        _report_dropped(selection.dropped, len(train))
        if not selection.utterances:
            raise InputError("at least one training utterance must be left; all were dropped, for the reasons above.")
        self._train = SpeechDataset(selection.utterances, features, reference, augmentation, seed)
        self._valid = SpeechDataset(valid, features, reference.without_check())
        self._durations = torch.tensor([one.duration for one in selection.utterances], dtype=torch.float64)
        self._factors: tuple[float, ...] = (1.0,)
        self._feasible = torch.ones(len(selection.utterances), 1, dtype=torch.bool)
        if augmentation.speed is not None:
            self._factors = augmentation.speed.factors
            short_enough = self._durations[:, None] / torch.tensor(self._factors) <= batch_seconds
            self._feasible = feasible_factors(selection, features, reference, augmentation.speed) & short_enough

    def steps_per_epoch(self, world_size: int) -> int:
        """Batches that each rank gets in the first epoch; others differ by what the speed factors change."""
        return len(self._plan(0, rank=0, world_size=world_size))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Lightning's hook, called each epoch."""
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        _, kept = self._draw_factors(epoch)
        if kept:
            what = "keep speed 1.0, since at the factor drawn their frames would be too few, or their batch too long"
            logger.info("epoch %d: %d of %d utterances %s", epoch + 1, kept, len(self._train), what)
        return self._loader(self._train, self._plan(epoch, self.trainer.global_rank, self.trainer.world_size))

    def val_dataloader(self) -> DataLoader[Batch]:
        """Lightning's hook."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        durations = [utterance.duration for utterance in self._valid.utterances]
        batches = plan_evaluation(durations, self._bounds, rank=rank, world_size=world_size)
        return self._loader(self._valid, BatchSampler(batches))

    def _plan(self, epoch: int, rank: int, world_size: int) -> BatchSampler:
        factors, _ = self._draw_factors(epoch)
        steps = plan_training(
            self._durations / factors,
            self._bounds,
            jitter=self._jitter,
            seed=self._seed,
            epoch=epoch,
            world_size=world_size,
        )
        return BatchSampler([step[rank] for step in steps], epoch=epoch, factors=factors)

    def _draw_factors(self, epoch: int) -> tuple[Tensor, int]:
        return draw_factors(self._factors, self._feasible, seed=self._seed, epoch=epoch)

    def _loader(self, dataset: SpeechDataset, sampler: BatchSampler) -> DataLoader[Batch]:
        return DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=self._num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_start_worker,
        )


def _start_worker(worker: int) -> None:
    logging.getLogger("asr.audio").setLevel(logging.ERROR)  # each epoch's workers would note conversions anew


def _report_dropped(dropped: dict[str, list[str]], num_utterances: int) -> None:
    for reason, ids in dropped.items():
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        named = ", ".join(ids[:NAMED]) + more
        logger.warning("dropped %d of %d training utterances: %s (%s)", len(ids), num_utterances, reason, named)
