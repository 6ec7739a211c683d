"""Writing of checkpoints, deletion of superseded checkpoints, and the stop after a signal."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
import torch

from asr.base.system.files import write_whole
from asr.base.system.signals import Stopped, StopRequest
from asr.core.checkpoint.saved import checkpoint_name, kept_checkpoints, superfluous
from asr.core.data.epoch_plan import Epochs
from asr.core.data.position import Position
from asr.core.run.resume import RUN_KEY, RunRecord
from asr.core.training.distributed import fail_together, gather, highest
from asr.core.training.lightning_internals import batches_begun, begin_whole_epoch, full_checkpoint, set_position
from asr.core.training.sharding import is_sharded

if TYPE_CHECKING:
    from asr.core.run.settings import CheckpointSettings
    from asr.core.training.task import TrainingTask


class Saving(pl.callbacks.Checkpoint):
    """Write checkpoints at fixed intervals, after each validation, at the end of an epoch and on a signal.

    A checkpoint is written only when an optimizer step, its metrics and its validation are complete. It contains the
    position before the next batch (`Position`), at which a resumed run continues.

    Args:
        folder: folder of the checkpoints.
        record: record of the run to which the checkpoints belong.
        epochs: epochs of the run, which compute the run's position.
        stop: request to stop, made by a signal.
        settings: settings of the intervals, and of the checkpoints that are retained.
        measure: metric of validations, logged as `valid/<measure>`; checkpoints with its lowest values are retained.
    """

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        epochs: Epochs,
        stop: StopRequest,
        settings: "CheckpointSettings",
        measure: str,
    ) -> None:
        self._folder = folder
        self._record = record
        self._epochs = epochs
        self._stop = stop
        self._every_steps = settings.every_steps
        self._every_seconds = 60 * settings.every_minutes
        self._select = settings.select
        self._keep = settings.keep
        self._measure = measure
        self._step = 0  # step of the newest checkpoint
        self._batches = 0  # number of batches of the epoch that were complete at the newest checkpoint
        self._time = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that all processes have resumed from the same step, after the checkpoint is restored."""
        steps = gather(trainer, [trainer.global_step])
        if len(set(steps)) > 1:
            must = f"all processes must resume from the same checkpoint in {self._folder}; got checkpoints of steps"
            hint = "Put run_dir on a disk that all processes share, and start again"
            fail_together(trainer, f"{must} {', '.join(map(str, steps))}. {hint}.")
        begin_whole_epoch(trainer)
        self._step, self._time = trainer.global_step, time.monotonic()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step, save if a checkpoint is due or a signal has arrived; stop after a signal."""
        if batch_idx % trainer.accumulate_grad_batches:
            return
        signum, overdue = self._agree(trainer)
        steps = trainer.global_step - self._step
        if steps and (signum or overdue or steps >= self._every_steps):
            self._save(trainer, batch_idx, None)
        if signum:
            raise Stopped(signum)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the validated weights with their score, except before the first step."""
        if trainer.global_step == 0:
            return
        score = float(trainer.callback_metrics[f"valid/{self._measure}"])
        done = batches_begun(trainer)
        self._save(trainer, done, score if math.isfinite(score) else None)  # infinite if the references have no words

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save at the end of an epoch that had no validation, and stop after a signal."""
        if self._step != trainer.global_step:
            self._save(trainer, batches_begun(trainer), None)
        signum, _ = self._agree(trainer)
        if signum:
            raise Stopped(signum)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the position of the run to a checkpoint, as a `Position` and as the counters of Lightning's loops."""
        done = self._batches
        position = self._epochs.position_at(trainer.current_epoch, trainer.world_size, done, pl_module.skipped)
        checkpoint[RUN_KEY] = self._record.at(position)
        # The step number for loggers. Lightning adds 1 when it resumes after a validation within an epoch.
        logged = trainer.global_step - (trainer.validating and position.batch > 0)
        set_position(checkpoint, position, logged)

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """If the run continues at another position than the saved one, set the counters of Lightning's loops.

        With another number of processes, it continues at batch 0 of a new plan for the rest of the epoch.
        """
        position = self._epochs.begin
        if position != Position.from_dict(checkpoint[RUN_KEY]["position"]):
            set_position(checkpoint, position, checkpoint["global_step"])

    def _agree(self, trainer: pl.Trainer) -> tuple[int, bool]:
        """Return a signal's number (0: none) and whether a checkpoint is overdue; all processes get equal values."""
        overdue = trainer.is_global_zero and time.monotonic() - self._time > self._every_seconds
        signum, any_overdue = highest(trainer, [self._stop.signum, int(overdue)])
        return signum, bool(any_overdue)

    def _save(self, trainer: pl.Trainer, batches: int, score: float | None) -> None:
        """Write the checkpoint of this step, after `batches` batches of the epoch; delete superseded checkpoints."""
        cast("TrainingTask", trainer.lightning_module).settle()  # stops the run if weights may not be finite
        self._step, self._time, self._batches = trainer.global_step, time.monotonic(), batches
        path = self._folder / checkpoint_name(trainer.global_step, score, self._measure)
        problem = None
        state = full_checkpoint(trainer) if trainer.is_global_zero or is_sharded(trainer) else {}
        if trainer.is_global_zero:
            try:
                write_whole(path, lambda file: torch.save(state, file))
            except (OSError, RuntimeError) as error:  # torch's writer converts OSError to RuntimeError
                problem = str(_disk_problem(error))
            else:
                for checkpoint in superfluous(self._select, kept_checkpoints(self._folder), self._keep):
                    checkpoint.path.unlink(missing_ok=True)
        problem = trainer.strategy.broadcast(problem)
        if problem is not None:
            must = f"{path}: the disk must have room for a checkpoint; got: {problem}"
            hint = "Earlier checkpoints are intact: free disk space and run the same command to resume"
            fail_together(trainer, f"{must}. {hint}.")


def _disk_problem(error: Exception) -> OSError:
    """Return the disk's OSError, which torch's writer replaces with another error."""
    cause: BaseException = error
    while not isinstance(cause, OSError):
        if cause.__context__ is None:
            raise error
        cause = cause.__context__
    return cause
