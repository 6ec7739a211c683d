"""All uses of Lightning's private interface, with a function for each use.

The functions suit Lightning 2.6, the only version that pyproject.toml allows. tests/test_lightning_internals.py fails
if another version has a different private interface.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from subprocess import Popen
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from asr.core.data.position import Position


def replace_signal_handlers(trainer: pl.Trainer, listen: Callable[[], None], give_back: Callable[[], None]) -> None:
    """Make `fit` call `listen` at its start and `give_back` at its end, in place of Lightning's signal handlers.

    Lightning's handlers write checkpoints and communicate with other processes at any point of a step. Lightning 2.6
    installs them in `_SignalConnector.register_signal_handlers` and removes them in `teardown`; no setting prevents it.
    Before each batch, `_TrainingEpochLoop._broadcast_sigterm_tensor` would broadcast what those handlers received, and
    wait for the device.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    connector = trainer._signal_connector
    connector.register_signal_handlers = listen  # type: ignore[method-assign]
    connector.teardown = give_back  # type: ignore[method-assign]


def batches_begun(trainer: pl.Trainer) -> int:
    """Return how many batches of the epoch this process has started, including those before the run was resumed.

    Lightning 2.6 counts a batch as `ready` before `on_train_batch_start`. Between two batches, which is also the time
    at which the schedule is updated, all counted batches are complete.
    """
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready


def begin_whole_epoch(trainer: pl.Trainer) -> None:
    """Clear Lightning's `restarting` flag if the run has resumed before the first batch of an epoch.

    Without `max_epochs`, Lightning 2.6 would assume that the checkpoint follows a validation within the epoch, and log
    every step under a number that is one too high.
    """
    if batches_begun(trainer) == 0:
        trainer.fit_loop.epoch_loop.restarting = False


def validate(trainer: pl.Trainer) -> None:
    """Run a full validation before the first step: callbacks are called and metrics are logged.

    Before the first step, Lightning 2.6 has only a sanity check, whose metrics are discarded. This function runs a
    validation in the same way as Lightning's training loop (`_TrainingEpochLoop.on_advance_end`).
    """
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True


def forget_metric(trainer: pl.Trainer, name: str) -> None:
    """Stop logging a metric until it has a new value.

    Lightning 2.6 keeps the last value that was logged in an epoch, and writes it to the lines of later steps, too.
    """
    if trainer._results is not None:
        for metric in trainer._results.values():
            if metric.meta.name == name:
                metric.reset()


def full_checkpoint(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the contents of a checkpoint: weights, optimizer, schedule, loops, callbacks.

    `Trainer.save_checkpoint` of Lightning 2.6 also writes the file, but not atomically, and on every process.
    """
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)


def set_position(checkpoint: dict[str, Any], position: Position, logged: int) -> None:
    """Set the position at which a run resumes from a checkpoint.

    Lightning 2.6 infers from its loop counters which callback wrote a checkpoint, and resumes accordingly. This
    function sets the counters so that exactly `position.batch` batches of the epoch are complete.

    Args:
        checkpoint: checkpoint from Lightning; it is changed in place.
        position: position at which to resume.
        logged: number of the next step for the loggers.
    """
    state = checkpoint["loops"]["fit_loop"]
    begun = position.epoch + (position.batch > 0)
    epochs = {"ready": begun, "started": begun, "processed": position.epoch, "completed": position.epoch}
    total = state["epoch_loop.batch_progress"]["total"]
    batches = {
        "total": dict.fromkeys(total, total["completed"]),  # "ready" may be one more
        "current": dict.fromkeys(total, position.batch),
        "is_last_batch": False,
    }
    checkpoint["loops"]["fit_loop"] = {
        **state,
        "epoch_progress": {"total": epochs, "current": dict(epochs)},
        "epoch_loop.batch_progress": batches,
        "epoch_loop.state_dict": {"_batches_that_stepped": logged},
    }


def start_process_group(strategy: ModelParallelStrategy) -> None:
    """Connect the processes of a strategy.

    `setup_environment` of Lightning 2.6 connects them, too, but requires a module, and makes two more process groups.
    """
    strategy._setup_distributed()


def started_processes(trainer: pl.Trainer) -> Sequence[Popen[bytes]]:
    """Return the child processes that Lightning has started: `procs` of the launcher of Lightning 2.6."""
    return getattr(trainer.strategy.launcher, "procs", ())


def replace_process_watch(watch: Callable[[], None]) -> None:
    """Make Lightning call `watch` after it has started other processes, in place of its own process observer.

    Lightning's observer checks every five seconds and, if a process has failed, kills all other processes,
    including the first one, without a message. Lightning 2.6 starts the observer with the function
    `_launch_process_observer` of the launcher's module.
    """
    from lightning.pytorch.strategies.launchers import subprocess_script

    subprocess_script._launch_process_observer = lambda child_processes: watch()


def moving_average(decay: float, make: Callable[..., EMAWeightAveraging] = EMAWeightAveraging) -> EMAWeightAveraging:
    """Make the callback for an exponential moving average of the weights; frozen weights stay bit-identical.

    An update of Lightning 2.6 launches several operations for each weight, and reads from the device how often it has
    averaged. Its formula, decay * average + (1 - decay) * weight, would also round weights that do not change.

    Args:
        decay: weight of the previous average in each optimizer step.
        make: class of the callback.
    """
    callback = make(decay=decay)
    callback.on_train_batch_end = partial(_update_average, callback, 1 - decay)  # type: ignore[method-assign]
    return callback


@torch.no_grad()
def _update_average(
    callback: EMAWeightAveraging, share: float, trainer: pl.Trainer, task: pl.LightningModule, *_: Any
) -> None:
    """Move the average towards the weights by `share` of the difference; the first update copies the weights.

    Buffers that are not floating-point numbers are copied in each update.
    """
    if trainer.global_step <= callback._latest_update_step:
        return  # this batch is accumulated
    average = callback._average_model
    assert average is not None
    # Only an update before which this callback has made none waits for the device, to read the counter.
    is_first = callback._latest_update_step == 0 and not average.n_averaged
    averages, weights = [], []
    for moved, weight in zip(_own_tensors(average.module), _own_tensors(task), strict=True):
        if is_first or not moved.is_floating_point():
            moved.copy_(weight)
        else:
            averages.append(moved)
            weights.append(weight)
    if averages:
        torch._foreach_lerp_(averages, weights, share)
    average.n_averaged += 1
    callback._latest_update_step = trainer.global_step


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield weights and buffers; of a sharded one, the part of this process."""
    for tensor in chain(module.parameters(), module.buffers()):
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor
