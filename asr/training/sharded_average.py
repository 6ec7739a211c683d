"""The moving average of sharded weights, sharded as they are."""

from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.optim.swa_utils import AveragedModel

from asr.training.sharding import load_weights, whole


class ShardedAverage(EMAWeightAveraging):
    """Lightning's moving average, which copies a task before it is sharded, and shards the copy."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copy the task and shard the copy; Lightning would shard the task first, which can then not be copied."""
        self._average_model = AveragedModel(pl_module, use_buffers=self._use_buffers, **self._kwargs)
        cast(pl.LightningModule, self._average_model.module).configure_model()

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
