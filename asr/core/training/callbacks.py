"""Optional training callbacks, except checkpointing."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback
from torch.optim.swa_utils import AveragedModel

from asr.base.text.numbers import counted, percent
from asr.core.build import several
from asr.core.run.learning_rate import PlannedRates, planned_rates
from asr.core.training.callback_state import check_state
from asr.core.training.compiled_blocks import compile_blocks
from asr.core.training.frozen import Frozen
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.core.training.lightning_internals import moving_average, validate
from asr.core.training.objective import Measure
from asr.core.training.profile import Profile
from asr.core.training.sharding import divide_weights, gather_weights, is_sharded, load_weights, whole
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.run.run import Run
    from asr.core.run.settings import RunSettings, TrainingSettings
    from asr.core.training.data_module import TrainingData
    from asr.core.training.task import TrainingTask


logger = logging.getLogger(__name__)

STUCK = 0.995  # with a larger fraction of blank frames, no word is recognised
STUCK_VALIDATIONS = 2  # in a row, because every CTC model outputs only blanks early in its training
LEARNING = 0.95  # a validation loss below this fraction of the loss by frequencies shows that the model uses the audio
CAUSES = (
    "a learning rate that is too high or too low (optimizer.lr), too few steps so far (schedule.warmup_steps, "
    "trainer.max_epochs), masks on a small corpus (augment=[speed_perturb]), texts that do not match their audio "
    "(python -m asr.doctor). debug=overfit tests whether the model can learn at all"
)


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
        average = cast(pl.LightningModule, self._average_model.module)
        average.configure_model()
        average.to(pl_module.device)  # the scalars, which are not sharded

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


class Patience(pl.callbacks.EarlyStopping):
    """Stop after `patience` consecutive validations without a new best WER or perplexity.

    If a run starts from a model (`init.from`), the validation of that model counts as the first best value. A run that
    is resumed after early stopping stops again immediately; Lightning alone would continue it. Validations without a
    finite value, as from references without words, are not counted; Lightning alone would stop at the first of them.

    Args:
        patience: number of validations.
        measure: metric of validations.
    """

    def __init__(self, patience: int, measure: Measure) -> None:
        self._measure = measure
        self._is_reported = False  # whether a validation without a finite value was logged
        super().__init__(f"valid/{measure.name}", mode="min", patience=patience, check_on_train_epoch_end=False)

    @property
    def reason(self) -> str | None:
        """Why the training has stopped; None if it has not stopped for lack of improvement."""
        if self.wait_count < self.patience:
            return None
        best = f"{self._measure.title} than {self._measure.write(float(self.best_score), 2)}"
        return f"no better {best} in {counted(self.patience, 'validation')} (early_stopping.patience)"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop immediately if the run had stopped before it was resumed."""
        trainer.should_stop = self.wait_count >= self.patience

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the validation with the best one, unless its value is not finite."""
        score = float(trainer.callback_metrics[self.monitor])
        if math.isfinite(score):
            super().on_validation_end(trainer, pl_module)
        elif not self._is_reported:
            self._is_reported = True
            cause = "for example because the references have no words"
            title = self._measure.title
            logger.warning("early stopping ignores validations whose %s is not finite; got %s, %s", title, score, cause)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except the patience, which comes from the settings."""
        super().load_state_dict(state_dict | {"patience": self.patience})


class StuckAtBlank(pl.Callback):
    """Warn once if nearly every frame is blank in `STUCK_VALIDATIONS` validations in a row."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the blank ratio, which is logged only for models with a frame head."""
        ratio = float(trainer.callback_metrics.get("valid/blank_ratio", 0.0))
        self._in_a_row = self._in_a_row + 1 if ratio >= STUCK and trainer.global_step > 0 else 0
        if self._in_a_row == STUCK_VALIDATIONS:
            blanks = f"{percent(ratio)} of the frames are blank in {STUCK_VALIDATIONS} validations in a row"
            logger.warning("the model recognises nothing: %s. Likely causes: %s.", blanks, CAUSES)


class StuckAtFrequencies(pl.Callback):
    """Log the planned learning rates, and the loss of a model that knows only how frequent each token is.

    Warn once if a validation after the warm-up, or at the end of a run that only warms up, has nearly this loss.

    Args:
        components: sections of the run's components.
        by_frequency: returns this loss per token; None: it is not known before the training.
    """

    def __init__(self, components: Mapping[str, Any], by_frequency: Callable[[], float | None]) -> None:
        self._components, self._by_frequency = components, by_frequency
        self._loss: float | None = None
        self._rates: PlannedRates | None = None
        self._is_reported = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute and log both."""
        steps_per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        self._rates = planned_rates(self._components, cast("TrainingTask", pl_module).total_steps, steps_per_epoch)
        self._loss = self._by_frequency()
        logger.info("learning rate: %s", self._rates)
        if self._loss is not None:
            logger.info("a model that knows only how frequent each token is has a loss of %.3f per token", self._loss)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the validation loss."""
        loss = float(trainer.callback_metrics["valid/loss"])
        if self._loss is None or self._rates is None or self._is_reported:
            return
        warmup, total = self._rates.warmup_steps, self._rates.total_steps
        # The loss is NaN without tokens, and the comparison is then false.
        if trainer.global_step > min(warmup, total - 1) and loss > LEARNING * self._loss:
            self._is_reported = True
            when = f"at step {trainer.global_step:,} (warm-up: {warmup:,} of {total:,} steps)"
            losses = f"a loss of {loss:.3f} per token, and {self._loss:.3f} would need only the tokens' frequencies"
            logger.warning("%s, the model has %s. Likely causes: %s.", when, losses, CAUSES)


def speech_callbacks(
    run: "Run[RunSettings]", model: Any, by_frequency: Callable[[], float | None], validates_first: bool
) -> list[pl.Callback]:
    """Make the callbacks of an objective on speech, and prepare the encoder's blocks as the settings say.

    Args:
        run: the run.
        model: the model to train, with an encoder.
        by_frequency: returns the loss per token of a model that knows only how frequent each token is; None: unknown.
        validates_first: whether the model is validated before a new run trains it.
    """
    settings = run.settings
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    if settings.compile_blocks:
        compile_blocks(model.encoder, run.world_size)
    callbacks: list[pl.Callback] = [Frozen(model, settings.init.frozen, settings.init.frozen_steps)]
    callbacks += [StuckAtBlank(), StuckAtFrequencies(settings.components, by_frequency)]
    if validates_first and run.resume is None:
        callbacks.append(LambdaCallback(on_train_start=lambda trainer, task: validate(trainer)))
    if settings.debug.profile_batches is not None:
        callbacks.append(Profile(run.dir, settings.debug.profile_batches))
    return callbacks


def memory_check(try_largest: Callable[..., None] | None, data: "TrainingData") -> list[pl.Callback]:
    """Make the callback that tries the largest batches once the model, also of a checkpoint, is on its device.

    Args:
        try_largest: takes a step on the largest batches; None: they are not tried.
        data: the data to train on.
    """
    if try_largest is None:
        logger.info("the largest batches are not tried first, because the folder asr/apps/doctor is absent")
        return []

    def check(trainer: pl.Trainer, task: pl.LightningModule) -> None:
        autocast, device = trainer.precision_plugin.train_step_context, trainer.strategy.root_device
        try_largest(task, trainer.optimizers[0], data.worst_batches, autocast, device)

    return [LambdaCallback(on_train_start=check)]


def chosen_callbacks(components: Mapping[str, Any]) -> list[pl.Callback]:
    """Make the callbacks of plugins that the settings choose; a checkpoint contains their state."""
    callbacks = {name: make() for name, make in several(components, "callback").items()}
    for name, callback in callbacks.items():
        if not isinstance(callback, pl.Callback):
            must = f"callback={name} must be a subclass of lightning.pytorch.Callback"
            bases = ", ".join(f"{base.__module__}.{base.__name__}" for base in type(callback).__bases__)
            raise InputError(f"{must}; {type(callback).__name__} is one of {bases}.")
        check_state(name, callback)
    return list(callbacks.values())


def weights_and_patience(trainer: pl.Trainer, settings: "TrainingSettings", measure: Measure) -> list[pl.Callback]:
    """Make the callbacks that provide the weights for validations, and the early stop."""
    decay, patience = settings.ema.decay, settings.early_stopping.patience
    callbacks: list[pl.Callback] = []
    if is_sharded(trainer):
        callbacks = [WholeInValidation() if decay is None else moving_average(decay, ShardedAverage)]
    elif decay is not None:
        callbacks = [moving_average(decay)]
    return callbacks + ([] if patience is None else [Patience(patience, measure)])
