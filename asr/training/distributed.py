"""One process or several: which prepares a run, and which end when another one fails."""

import atexit
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from asr.errors import InputError, StoreError
from asr.system.processes import die_with_parent
from asr.training.lightning_internals import replace_process_watch, started_processes

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Result = TypeVar("Result")

STARTED_BY_FIRST = "ASR_STARTED_BY_FIRST_PROCESS"  # environment: Lightning has started this one, for that of this id
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # in which processes that exchange tensors notice by themselves that one of them is gone

_LEFT: list[object] = []  # groups that this process has left

logger = logging.getLogger(__name__)


def first_then_all(trainer: "Trainer", prepare: Callable[[], Result]) -> Result:
    """Run `prepare` on the first process, and then on the others, which find what it has written.

    Lightning starts the other processes of one machine when the first one comes to `fit`, so they find it anyway.
    torchrun and SLURM start all at once; there the others wait.

    Raises:
        InputError, StoreError: from `prepare`, on the first process; the others end without a word.
    """
    strategy = trainer.strategy
    environment = getattr(strategy, "cluster_environment", None)
    if trainer.world_size == 1 or environment is None:
        return prepare()
    if STARTED_BY_FIRST in os.environ:
        die_with_parent(int(os.environ[STARTED_BY_FIRST]))
        return prepare()
    if not environment.creates_processes_externally:
        prepared = prepare()
        os.environ[STARTED_BY_FIRST] = str(os.getpid())  # the others inherit it
        _watch_others(trainer)
        return prepared
    strategy.setup_environment()
    problem: InputError | StoreError | None = None
    if trainer.global_rank == 0:
        try:
            prepared = prepare()
        except (InputError, StoreError) as error:
            problem = error
    failed = strategy.broadcast(problem is not None)
    if problem is not None:
        raise problem
    if failed:
        take_leave()
        sys.exit(0)
    return prepared if trainer.global_rank == 0 else prepare()


def gather(trainer: "Trainer", own: list[Result]) -> list[Result]:
    """Join the lists of all processes in the order of their ranks; to be called by all of them."""
    if trainer.world_size == 1:
        return own
    import torch.distributed as dist

    of_ranks: list[list[Result]] = [[] for _ in range(trainer.world_size)]
    dist.all_gather_object(of_ranks, own)
    return [result for of_rank in of_ranks for result in of_rank]


def fail_together(trainer: "Trainer", message: str) -> NoReturn:
    """Stop for a reason that all processes know: the first one says it.

    Raises:
        InputError: on the first process.
    """
    take_leave()
    if trainer.is_global_zero:
        raise InputError(message)
    sys.exit(0)  # any other status would be another failure, to those who watch the processes


def take_leave() -> None:
    """Close what the processes exchange through, once all of them know that there is no more to say.

    Left to the end of Python, Gloo's threads may still hold tensors then, and abort the process (torch's #179291).
    """
    import torch.distributed as dist

    if dist.is_initialized():
        # DDP holds the group, too. Were it the last to let go of it, it would wait for Gloo's threads while it has
        # Python's lock, which one of them may need to give back the tensors of the last exchange: for ever.
        _LEFT.append(dist.group.WORLD)
        atexit.register(_let_go)
        dist.destroy_process_group()


def _let_go() -> None:
    """Join Gloo's threads: who lets go of a group from Python waits for them without Python's lock. DDP goes first."""
    gc.collect()
    _LEFT.clear()


def stop_others(trainer: "Trainer") -> None:
    """Kill the processes that belong to this one, which ends: without it they would wait, or complain."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    # torch raises an error where a process that reads audio dies, and that would be here.
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if in_main_thread else None
    for worker in multiprocessing.active_children():  # they read audio, and ignore what asks them to end
        worker.kill()
        if in_main_thread:
            worker.join()
    if before is not None:
        signal.signal(signal.SIGCHLD, before)
    for process in started_processes(trainer):
        process.kill()


def _watch_others(trainer: "Trainer") -> None:
    """Put a watch of our own on the processes that Lightning will start."""

    def watch() -> None:
        threading.Thread(target=_end_with_others, args=(trainer,), daemon=True, name="watch of other processes").start()

    replace_process_watch(watch)


def _end_with_others(trainer: "Trainer") -> None:
    """Wait until another process fails; end this one, which may wait for it in the middle of a step, and the rest."""
    while (lost := _lost_process(trainer)) is None:
        if trainer.state.stopped or all(process.poll() == 0 for process in started_processes(trainer)):
            return
        time.sleep(POLL_SECONDS)
    time.sleep(GRACE_SECONDS)
    if trainer.state.stopped:  # it knows, and ends in its own way
        return
    logger.error("error: %s", lost)
    stop_others(trainer)
    sys.stdout.flush()
    os._exit(1)


def _lost_process(trainer: "Trainer") -> str | None:
    """Name the process that has failed, out of those that were started for this one; None if there is none."""
    for number, process in enumerate(started_processes(trainer), start=trainer.global_rank + 2):
        status = process.poll()
        if status:
            end = f"was ended by {_signal_name(-status)}" if status < 0 else f"has failed, with exit status {status}"
            return _must_live(trainer, f"process {number} {end}")
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def _must_live(trainer: "Trainer", problem: str) -> str:
    return f"all {trainer.world_size} processes must live to the end; {problem}. Run the same command to resume."


def report_lost_connection(trainer: "Trainer") -> NoReturn:
    """End this process since another one is gone; say so, and which one if that is known here.

    Raises:
        InputError: on all processes but those that Lightning has started for a first one, which says it.
    """
    if STARTED_BY_FIRST in os.environ and trainer.local_rank > 0:
        sys.exit(0)
    end = time.monotonic() + GRACE_SECONDS  # its connections are closed a little before it has ended
    while (lost := _lost_process(trainer)) is None and started_processes(trainer) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    raise InputError(lost or _must_live(trainer, f"process {trainer.global_rank + 1} has lost another one")) from None


def is_lost_connection(error: Exception) -> bool:
    """Tell whether an exception says that another process is gone."""
    import torch.distributed as dist

    texts = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    return isinstance(error, dist.DistError) or any(text in str(error) for text in texts)
