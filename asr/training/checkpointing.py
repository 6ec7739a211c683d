"""When a checkpoint is written and which are kept; stopping on a signal."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
import torch

from asr.checkpoint.saved import checkpoint_name, kept_checkpoints, superfluous
from asr.data.epochs import Epochs
from asr.data.position import Position
from asr.run.resume import RUN_KEY, Run
from asr.system.files import write_whole
from asr.training.distributed import fail_together, gather
from asr.training.lightning_internals import batches_begun, begin_whole_epoch, full_checkpoint, set_place
from asr.training.signals import Stopped, StopRequest

if TYPE_CHECKING:
    from asr.run.settings import CheckpointSettings
    from asr.training.tasks import TrainingTask


class Saving(pl.callbacks.Checkpoint):
    """Write checkpoints: every so many steps or minutes, after each validation, at the end of an epoch, on a signal.

    Always when all is done that belongs to an optimizer step, its line of metrics and a validation included: what a
    checkpoint holds is the state before a certain batch, `Position`, and a run that is resumed from it does that batch
    next.

    Args:
        folder: of the checkpoints.
        run: that they are of.
        epochs: of the run, which know its position.
        stop: whether a signal has asked to stop.
        settings: when checkpoints are written, and which are stored.
        measure: what a validation measures, which chooses checkpoints: `valid/<measure>` is logged.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        epochs: Epochs,
        stop: StopRequest,
        settings: "CheckpointSettings",
        measure: str,
    ) -> None:
        self._folder = folder
        self._run = run
        self._epochs = epochs
        self._stop = stop
        self._every_steps = settings.every_steps
        self._every_seconds = 60 * settings.every_minutes
        self._select = settings.select
        self._keep = settings.keep
        self._measure = measure
        self._step = 0  # of the newest checkpoint
        self._batches = 0  # of its epoch, done
        self._time = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook, when everything is restored."""
        steps = gather(trainer, [trainer.global_step])
        if len(set(steps)) > 1:
            must = f"all processes must resume from the same checkpoint in {self._folder}; they found those of steps"
            fail_together(trainer, f"{must} {', '.join(map(str, steps))}. See that they share the disk; start again.")
        begin_whole_epoch(trainer)
        self._step, self._time = trainer.global_step, time.monotonic()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook: where a step ended with the batch before this one, save if it is time or a signal came."""
        if batch_idx % trainer.accumulate_grad_batches:
            return
        signum, overdue = self._agree(trainer)
        steps = trainer.global_step - self._step
        if steps and (signum or overdue or steps >= self._every_steps):
            self._save(trainer, batch_idx, None)
        if signum:
            raise Stopped(signum)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: validated weights are saved with their score; those of the start are kept elsewhere."""
        if trainer.global_step == 0:
            return
        score = float(trainer.callback_metrics[f"valid/{self._measure}"])
        done = batches_begun(trainer)
        self._save(trainer, done, score if math.isfinite(score) else None)  # inf: no word was to be recognised

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook: an epoch without validation, which may be the last one."""
        if self._step != trainer.global_step:
            self._save(trainer, batches_begun(trainer), None)
        signum, _ = self._agree(trainer)
        if signum:
            raise Stopped(signum)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook: say where the run is, in our words and in Lightning's."""
        done = self._batches
        position = self._epochs.position_at(trainer.current_epoch, trainer.world_size, done, pl_module.skipped)
        checkpoint[RUN_KEY] = self._run.at(position)
        # The number that loggers call step. Behind a validation within an epoch, Lightning adds 1 on resuming.
        logged = trainer.global_step - (trainer.validating and position.batch > 0)
        set_place(checkpoint, position, logged)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook: where there are other processes than before, the rest of the epoch begins at batch 0."""
        saved = Position.from_dict(checkpoint[RUN_KEY]["position"])
        position = saved.on(trainer.world_size)
        if position != saved:
            set_place(checkpoint, position, checkpoint["global_step"])

    def _agree(self, trainer: pl.Trainer) -> tuple[int, bool]:
        """Let all processes know what one of them knows: which signal came, and whether the first one's time is up."""
        overdue = trainer.is_global_zero and time.monotonic() - self._time > self._every_seconds
        if trainer.world_size == 1:
            return self._stop.signum, overdue
        mine = torch.tensor([self._stop.signum, int(overdue)], device=trainer.strategy.root_device)
        signum, any_overdue = trainer.strategy.reduce(mine, reduce_op="max").tolist()
        return signum, bool(any_overdue)

    def _save(self, trainer: pl.Trainer, batches: int, score: float | None) -> None:
        """Write the checkpoint of this step, behind so many batches; remove those that are needed no longer."""
        cast("TrainingTask", trainer.lightning_module).settle()  # what is saved is sound
        self._step, self._time, self._batches = trainer.global_step, time.monotonic(), batches
        path = self._folder / checkpoint_name(trainer.global_step, score, self._measure)
        problem = None
        if trainer.is_global_zero:
            state = full_checkpoint(trainer)
            try:
                write_whole(path, lambda file: torch.save(state, file))
            except (OSError, RuntimeError) as error:  # torch's writer turns the one into the other
                problem = str(_disk_problem(error))
            else:
                for checkpoint in superfluous(self._select, kept_checkpoints(self._folder), self._keep):
                    checkpoint.path.unlink(missing_ok=True)
        problem = trainer.strategy.broadcast(problem)
        if problem is not None:
            must = f"{path}: the disk must have room for a checkpoint; {problem}"
            hint = "What was there before is whole: make room, and run the same command again"
            fail_together(trainer, f"{must}. {hint}.")


def _disk_problem(error: Exception) -> OSError:
    """Find what the disk said, which torch's writer hides behind an error of its own."""
    cause: BaseException = error
    while not isinstance(cause, OSError):
        if cause.__context__ is None:
            raise error
        cause = cause.__context__
    return cause
