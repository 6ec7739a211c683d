"""The Lightning modules of a language model: the loss of a step, validation and logged metrics; the data."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from asr.checkpoint.load import CHECKPOINT_KEY
from asr.checkpoint.saved import PERPLEXITY
from asr.data.batch_plan import BatchBounds, BatchSampler
from asr.data.dataset import Item
from asr.data.epoch_plan import Epochs, EpochSampler
from asr.data.position import Position
from asr.data.seeds import derive_seed
from asr.data.text_set import Sentences, TextBatch, TextSet
from asr.evaluation.perplexity import of_loss
from asr.interfaces import Schedule, TokenModel
from asr.kernels.choice import exact
from asr.language_model.token_scores import text_log_probs
from asr.training.distributed import add_up, fail_together
from asr.training.gradients import divide_and_clip
from asr.training.tasks import LineSums, log_step, scheduled


class LanguageModelTask(pl.LightningModule):
    """Train a language model over tokens.

    The loss is the sum of the tokens' losses divided by the number of tokens, including sentence ends, over all ranks
    and all batches of the optimizer step. Gradients are summed and divided once, before clipping.

    Args:
        model: the model to train.
        make_optimizer: makes the optimizer from named parameters.
        schedule: schedule of the learning rate.
        total_steps: number of optimizer steps of the whole run, for the schedule.
        seed: seed of dropout.
        extra: data stored in a checkpoint with the weights (`checkpoint_extra`).
    """

    measure: ClassVar[str] = PERPLEXITY
    skipped = 0  # texts are in memory, so no text is unreadable

    def __init__(
        self,
        model: TokenModel,
        *,
        make_optimizer: Callable[[Any], Optimizer],
        schedule: Schedule,
        total_steps: int,
        seed: int,
        extra: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.model = cast(nn.Module, model)
        self._token_model = [model]  # in a list, so that checkpoints do not contain the module twice
        self._make_optimizer = make_optimizer
        self._schedule = schedule
        self.total_steps = total_steps
        self.line = LineSums()
        self._seed = seed
        self._extra = extra
        self._batch: TextBatch | None = None  # the current batch
        self._sums: list[Tensor] = []  # loss and tokens of the step's batches
        self._unsettled: list[tuple[int, Tensor]] = []  # steps' numbers; (loss, tokens, gradient norm) over all ranks
        self._last_step_time = time.monotonic()
        self._valid = torch.zeros(3)

    def configure_optimizers(self) -> Any:
        """Make the optimizer and the schedule, which is updated after every optimizer step."""
        optimizer = self._make_optimizer(self.model.named_parameters())
        return scheduled(optimizer, self._schedule, self.total_steps, self.trainer)

    def losses(self, batch: TextBatch) -> Mapping[str, Tensor]:
        """Compute the loss of each sentence, (B,)."""
        self._batch = batch
        return {"loss": -text_log_probs(self._token_model[0], batch.tokens, batch.token_lengths)}

    def too_large(self) -> str:
        """Return the error message for a batch that does not fit into memory."""
        shape = "a batch that does not fit"
        if self._batch is not None:
            shape = "{} sentences of {} tokens".format(*self._batch.tokens.shape)
        return f"a batch must fit into memory; got {shape}. Lower text.batch_tokens."

    def on_train_start(self) -> None:
        """Start the clock of the first step, so that the time of the setup does not count."""
        self._last_step_time = time.monotonic()

    def on_train_batch_start(self, batch: TextBatch, batch_idx: int) -> None:
        """Seed dropout with (seed, epoch, batch index, rank), so that a resumed run draws the same masks."""
        torch.manual_seed(derive_seed(self._seed, self.current_epoch, batch_idx, self.global_rank))

    def training_step(self, batch: TextBatch, batch_idx: int) -> Tensor:
        """Sum the losses of a batch, and multiply the sum by the numbers of ranks and of accumulated batches.

        The sum is multiplied because torch and Lightning divide by these numbers.
        """
        loss = self.losses(batch)["loss"].sum()
        tokens = batch.token_lengths.sum() + len(batch)
        self._sums.append(torch.stack([loss.detach().to(exact(self.device)), tokens.to(exact(self.device))]))
        return loss * (self.trainer.world_size * self.trainer.accumulate_grad_batches)

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Divide the gradients by the step's tokens, then clip them; called once per optimizer step."""
        sums = add_up(self.trainer, torch.stack(self._sums).sum(dim=0))
        self._sums = []
        norm = divide_and_clip(self.parameters(), sums[1], gradient_clip_val, partial(add_up, self.trainer))
        self._unsettled.append((self.global_step + 1, torch.cat([sums, norm.to(sums.dtype)[None]])))
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set outside of Trainer's class
        last = self.trainer.is_last_batch or self.global_step + 1 == self.trainer.max_steps
        if (self.global_step + 1) % every == 0 or last:
            self._log_step(self.settle(), optimizer.param_groups[0]["lr"])

    def settle(self) -> list[list[float]]:
        """Synchronise with the device; stop if a loss or gradient is not finite. All ranks must call this method.

        Returns:
            Loss, tokens and gradient norm of each step since the last call.
        """
        steps, self._unsettled = self._unsettled, []
        rows: list[list[float]] = torch.stack([sums for _, sums in steps]).tolist() if steps else []
        for (number, _), (loss, tokens, norm) in zip(steps, rows, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):  # these are sums over ranks, so all ranks stop
                must = f"loss and gradient must be finite; in step {number} the loss is {loss:g}, the norm {norm:g}"
                fail_together(self.trainer, f"{must}. Try a lower optimizer.lr, or more schedule.warmup_steps.")
            self.line.add(loss, tokens, norm, self.trainer.gradient_clip_val)
        return rows

    def _log_step(self, steps: list[list[float]], learning_rate: float) -> None:
        now = time.monotonic()
        seconds, self._last_step_time = now - self._last_step_time, now
        loss, tokens, norm = steps[-1]
        log_step(self, self.global_step + 1)  # number of completed steps after this step
        self.log("train/loss", loss / tokens, prog_bar=True)
        self.log("train/grad_norm", norm)
        self.log("train/learning_rate", learning_rate)
        self.log("train/tokens_per_second", sum(step[1] for step in steps) / seconds, prog_bar=True)

    def on_validation_epoch_start(self) -> None:
        """Stop if a loss or gradient so far is not finite; reset the sums of the validation."""
        self.settle()
        self._valid = torch.zeros(3, dtype=exact(self.device), device=self.device)

    def validation_step(self, batch: TextBatch, batch_idx: int) -> None:
        """Sum the losses, tokens and words of a batch, including the ends of sentences."""
        if len(batch):
            loss, ends = self.losses(batch)["loss"].to(self._valid.dtype).sum(), len(batch)
            counts = batch.token_lengths.sum() + ends, batch.num_words.sum() + ends
            self._valid += torch.stack([loss, *(count.to(loss.dtype) for count in counts)])

    def on_validation_epoch_end(self) -> None:
        """Log perplexity and loss: sums over all ranks, divided once."""
        loss, tokens, words = add_up(self.trainer, self._valid).tolist()
        log_step(self, self.global_step)
        self.log(f"valid/{PERPLEXITY}", of_loss(loss / words), prog_bar=True)
        self.log("valid/loss", loss / tokens)

    def on_validation_end(self) -> None:
        """Restart the clock of the step, so that the times of the validation and of its checkpoint do not count."""
        self._last_step_time = time.monotonic()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the config and the tokenizer, so that a bundle can be made from a checkpoint alone."""
        checkpoint[CHECKPOINT_KEY] = self._extra


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


class _Rows(Dataset[int]):
    """Rows of sentences; `Sentences.batch` makes a batch from a list of rows."""

    def __getitem__(self, item: Item) -> int:
        return item.row


def _loader(sentences: Sentences, sampler: EpochSampler | BatchSampler) -> DataLoader[TextBatch]:
    return DataLoader(_Rows(), batch_sampler=sampler, collate_fn=sentences.batch)  # type: ignore[arg-type]
