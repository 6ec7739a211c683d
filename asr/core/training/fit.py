"""Train to the end of a run; errors are replaced by messages in the user's terms."""

import logging
import traceback
from typing import TYPE_CHECKING, Any, cast

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from asr.base.system.signals import Stopped, StopRequest
from asr.core.run.events import EndedEarly, EventsFile
from asr.core.training.callbacks import Patience
from asr.core.training.compiled_blocks import compile_failure
from asr.core.training.distributed import is_lost_connection, report_lost_connection, stop_others, take_leave
from asr.core.training.trainer import refusal
from asr.errors import InputError, UnreachableStoreError, is_out_of_memory

if TYPE_CHECKING:
    from asr.core.run.resume import Resume
    from asr.core.run.run import Run
    from asr.core.run.settings import TrainerSettings
    from asr.core.training.task import TrainingTask

LOST_WORKER = (ConnectionError, EOFError, FileNotFoundError)  # errors of a lost worker, in addition to torch's own
SHORTENING = (
    "max_time",
    "fast_dev_run",
    "limit_train_batches",
    "overfit_batches",
)  # Trainer arguments that end it early
OTHER_GROUPS = "parameter group"  # in torch's errors about the state of another optimizer

logger = logging.getLogger(__name__)


def fit(
    trainer: pl.Trainer,
    task: "TrainingTask",
    data: pl.LightningDataModule,
    run: "Run[Any]",
    stop: StopRequest,
) -> str | None:
    """Train from the beginning or from a checkpoint; record an early end, also by a signal, as an event of the run.

    Args:
        trainer: trainer with callbacks and loggers from `equip`.
        task: the task to train.
        data: the data to train on.
        run: the run, with the checkpoint to resume from.
        stop: request to stop, made by a signal.

    Returns:
        Where and why the run has ended before its planned end, for the last line of its log; None if it has not.

    Raises:
        InputError: another process has ended, or an error has occurred that the user can correct, such as too little
            memory.
        StoreError: a store failed.
        Stopped: a signal stopped the training; the run is saved.
    """
    resume, settings, total_steps = run.resume, run.settings.trainer, task.total_steps
    if resume and _is_finished(trainer, resume):
        logger.info("the run is already finished, at step %d: %s", resume.step, resume.path)
        take_leave()
        return None
    if resume:
        position = resume.position.on(trainer.world_size)
        where = f"epoch {position.epoch + 1}, batch {position.batch + 1}"
        logger.info("resuming from step %d, %s: %s", resume.step, where, resume.path)
    try:
        trainer.fit(cast(pl.LightningModule, task), data, ckpt_path=resume.path if resume else None, weights_only=True)
        take_leave()
        early_end = _early_end(trainer, settings, total_steps)
        if early_end is not None and trainer.global_step == 0:
            raise InputError(f"a run must take at least one step; it {early_end}.")
        _record(early_end, run)
        return early_end
    except Stopped as stopped:
        if not stop.at_once:  # after an immediate stop, processes may be at different steps and wait for each other
            take_leave()
        if trainer.global_rank > 0:
            raise SystemExit(0) from None
        raise _stopped(stopped.signum, _place(trainer, total_steps), run) from None
    except (MisconfigurationException, ValueError, TypeError) as error:
        if reason := _lost_worker(error):
            raise InputError(reason) from None
        if resume and OTHER_GROUPS in str(error):
            must = f"{resume.path}: the optimizer must divide the weights into groups like this version of asr"
            raise InputError(f"{must}; an earlier version wrote this checkpoint. Give another run_dir.") from None
        if not _is_from_lightning(error):
            raise
        raise InputError(refusal(error, settings.others)) from None
    except UnreachableStoreError as error:
        raise UnreachableStoreError(f"{error} Run the same command to resume.") from None
    except (RuntimeError, MemoryError, *LOST_WORKER) as error:
        if stop.at_once:  # a second Ctrl-C may cause any error
            raise _stopped(stop.signum, _place(trainer, total_steps), run) from None
        if is_out_of_memory(error):
            raise InputError(task.too_large()) from None
        if reason := _lost_worker(error):
            raise InputError(reason) from None
        if reason := compile_failure(error):
            must = "compile_blocks must be false where torch.compile fails"
            raise InputError(f"{must}; got true ({reason}). Give compile_blocks=false.") from None
        if trainer.world_size > 1 and is_lost_connection(error):
            report_lost_connection(trainer)
        raise
    finally:
        if trainer.interrupted:
            stop_others(trainer)


def _stopped(signum: int, where: str, run: "Run[Any]") -> Stopped:
    """Record that a signal stopped the run, and return the exception to raise."""
    stopped = Stopped(signum, where)
    _record(str(stopped), run)
    return stopped


def _record(early_end: str | None, run: "Run[Any]") -> None:
    """Write the event of an early end, if there is one, in the first process."""
    if early_end is not None and run.is_first:
        EventsFile(run.dir).append(EndedEarly(early_end))


def _is_finished(trainer: pl.Trainer, resume: "Resume") -> bool:
    """Return whether no epoch or step is left; Lightning alone would start another epoch."""
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    return 0 < epochs <= resume.position.epoch or 0 < steps <= resume.step


def _is_from_lightning(error: BaseException) -> bool:
    """Return whether Lightning itself raised an error, as for arguments of its Trainer that do not suit the run."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("lightning.")


def _early_end(trainer: pl.Trainer, settings: "TrainerSettings", total_steps: int) -> str | None:
    """Describe where and why a run has ended early; None if it has reached trainer.max_epochs or trainer.max_steps."""
    epochs, steps = settings.max_epochs or -1, settings.max_steps
    is_at_bound = 0 < steps <= trainer.global_step or (0 < epochs <= trainer.current_epoch and trainer.is_last_batch)
    given = [f"trainer.{name}={settings.others[name]}" for name in SHORTENING if name in settings.others]
    if is_at_bound and not (given and trainer.global_step < total_steps):
        return None
    patiences = [each for each in trainer.early_stopping_callbacks if isinstance(each, Patience)]  # not of a plugin
    reason = patiences[0].reason if patiences else None
    return f"stopped {_place(trainer, total_steps)}: {reason or ', '.join(given) or 'a callback of the trainer'}"


def _place(trainer: pl.Trainer, total_steps: int) -> str:
    return f"at step {trainer.global_step:,} of {total_steps:,}"


def _lost_worker(error: BaseException) -> str | None:
    """Return the message for the error of a lost worker; None for other errors.

    torch raises it in a signal handler, so it may arise in any code, also in code that replaces it by another error.
    """
    cause: BaseException | None = error
    while cause is not None and "DataLoader worker" not in str(cause):
        cause = cause.__cause__
    if cause is None and not is_lost_worker(error):
        return None
    lost = cause or error
    reason = (str(lost) or type(lost).__name__).splitlines()[0]
    must = f"processes that read audio must not end during training; one ended: {reason}"
    return f"{must}. Run the same command to resume; a lower data.num_workers needs less memory."


def is_lost_worker(error: BaseException) -> bool:
    """Return whether a worker ended while it sent a batch; its error, unlike that of a missing file, names no file."""
    return isinstance(error, LOST_WORKER) and getattr(error, "filename", None) is None
