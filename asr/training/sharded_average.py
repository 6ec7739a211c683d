"""Validation and moving average of sharded weights."""

from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.optim.swa_utils import AveragedModel

from asr.training.sharding import divide_weights, gather_weights, load_weights, whole


class WholeInValidation(pl.callbacks.Callback):
    """Validate with whole weights on every process."""

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gather the weights."""
        gather_weights(pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Free the parts of the weights that belong to other processes."""
        divide_weights(pl_module)


class ShardedAverage(EMAWeightAveraging):
    """Lightning's moving average of a sharded task: the task is copied before it is sharded; the copy is sharded, too.

    Validations use whole weights, as with `WholeInValidation`.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copy the task, then shard the copy; Lightning would shard first, but a sharded task cannot be copied."""
        self._average_model = AveragedModel(pl_module, use_buffers=self._use_buffers, **self._kwargs)
        cast(pl.LightningModule, self._average_model.module).configure_model()

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Exchange the trained weights and the average, then gather the average."""
        super().on_validation_epoch_start(trainer, pl_module)
        gather_weights(pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Free the parts that belong to other processes, then exchange the average and the trained weights again."""
        divide_weights(pl_module)
        super().on_validation_epoch_end(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the average as whole tensors."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        checkpoint["state_dict"] = whole(checkpoint["state_dict"])

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Load this process's part of the average and of the trained weights."""
        assert self._average_model is not None
        load_weights(self._average_model.module, checkpoint["state_dict"])
        self._average_model.n_averaged.copy_(checkpoint["averaging_state"]["n_averaged"])
        load_weights(pl_module, checkpoint["current_model_state"])
