"""What is asked of Lightning behind its public interface, each in a function of its own.

All of it is as Lightning 2.6 has it (pyproject.toml allows no other); tests/test_lightning_internals.py fails where
another version has it otherwise.
"""

from collections.abc import Callable, Sequence
from functools import partial
from subprocess import Popen
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor

from asr.data.position import Position


def replace_signal_handlers(trainer: pl.Trainer, listen: Callable[[], None], give_back: Callable[[], None]) -> None:
    """Have `fit` call `listen` when it begins and `give_back` when it ends, in the place of Lightning's own handlers.

    Those talk to other processes and write checkpoints in the middle of whatever was going on. Lightning 2.6 sets them
    by `_SignalConnector.register_signal_handlers` and takes them back by `teardown`; neither is a setting.
    """
    connector = trainer._signal_connector
    connector.register_signal_handlers = listen  # type: ignore[method-assign]
    connector.teardown = give_back  # type: ignore[method-assign]


def batches_begun(trainer: pl.Trainer) -> int:
    """Count the batches of the epoch that have been handed to the training step, on this process.

    Those that were done before the run was resumed count too. Lightning 2.6 counts a batch as `ready` before
    `on_train_batch_start`, so between two batches all of them are done. It takes a step of the schedule in between.
    """
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready


def begin_whole_epoch(trainer: pl.Trainer) -> None:
    """Tell Lightning, where it has resumed before the first batch of an epoch, that this is no rest of one.

    Else Lightning 2.6, where `max_epochs` is no bound, takes the place before the first batch for one behind a
    validation, and numbers what is logged one step too high.
    """
    if batches_begun(trainer) == 0:
        trainer.fit_loop.epoch_loop.restarting = False


def validate(trainer: pl.Trainer) -> None:
    """Run a validation before the first step, as any other: its hooks are called, and what it logs is kept.

    Lightning 2.6 has only a sanity check there, which keeps nothing; its training loop runs a validation in this way
    (`_TrainingEpochLoop.on_advance_end`).
    """
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True


def forget_metric(trainer: pl.Trainer, name: str) -> None:
    """Log a metric no more until it has a new value.

    Lightning 2.6 keeps the last value that was logged in an epoch, and writes it to the lines of later steps, too.
    """
    if trainer._results is not None:
        for metric in trainer._results.values():
            if metric.meta.name == name:
                metric.reset()


def full_checkpoint(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what a checkpoint holds: weights, optimizer, schedule, loops, callbacks.

    `Trainer.save_checkpoint` of Lightning 2.6 writes it, too, but not whole or not at all, and on every process.
    """
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def set_place(checkpoint: dict[str, Any], position: Position, logged: int) -> None:
    """Have the run that is resumed from a checkpoint begin at a position.

    Lightning 2.6 infers from the counters of its loops in which hook a checkpoint was written, and from that how to
    resume. Here they always say the same: `position.batch` batches of the epoch are done in every respect, and nothing
    else is.

    Args:
        checkpoint: of Lightning; changed in place.
        position: where to begin.
        logged: number of the next step, for the loggers.
    """
    state = checkpoint["loops"]["fit_loop"]
    begun = position.epoch + (position.batch > 0)
    epochs = {"ready": begun, "started": begun, "processed": position.epoch, "completed": position.epoch}
    total = state["epoch_loop.batch_progress"]["total"]
    batches = {
        "total": dict.fromkeys(total, total["completed"]),  # one more may have been made ready
        "current": dict.fromkeys(total, position.batch),
        "is_last_batch": False,
    }
    checkpoint["loops"]["fit_loop"] = {
        **state,
        "epoch_progress": {"total": epochs, "current": dict(epochs)},
        "epoch_loop.batch_progress": batches,
        "epoch_loop.state_dict": {"_batches_that_stepped": logged},
    }


def started_processes(trainer: pl.Trainer) -> Sequence[Popen[bytes]]:
    """Return the processes that Lightning has started for this one: `procs` of the launcher of Lightning 2.6."""
    return getattr(trainer.strategy.launcher, "procs", ())


def replace_process_watch(watch: Callable[[], None]) -> None:
    """Have `watch` called when Lightning has started other processes, in the place of Lightning's own watch.

    That one looks every five seconds, and if a process has failed, kills all the others, the first included, without
    a word. Lightning 2.6 starts it by `_launch_process_observer`, which its launcher looks up in its own module.
    """
    from lightning.pytorch.strategies.launchers import subprocess_script

    subprocess_script._launch_process_observer = lambda child_processes: watch()


def moving_average(decay: float) -> pl.Callback:
    """Make the callback that averages the weights of all steps, and leaves frozen ones as they are, to the bit.

    Lightning 2.6 computes decay * average + (1 - decay) * weight, which rounds a weight that does not change.
    """
    callback = EMAWeightAveraging(decay=decay)
    callback._kwargs["avg_fn"] = partial(_towards, 1 - decay)
    return callback


def _towards(share: float, average: Tensor, weight: Tensor, _: Any) -> Tensor:
    return average + share * (weight - average)
