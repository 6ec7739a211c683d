"""Training with several processes: prepare files once, report each error once, and end all processes when one fails."""

import atexit
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from asr.base.system.processes import die_with_parent
from asr.core.training.lightning_internals import replace_process_watch, started_processes
from asr.errors import InputError, StoreError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch import Tensor

Result = TypeVar("Result")

STARTED_BY_FIRST = "ASR_STARTED_BY_FIRST_PROCESS"  # environment variable: id of the parent process
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # time in which processes can detect a lost connection by themselves

_LEFT: list[object] = []  # process groups that this process has left
_OF_CPU: list[Any] = []  # the process group of `highest`, after its first call

logger = logging.getLogger(__name__)


def first_then_all(trainer: "Trainer", prepare: Callable[[], Result]) -> Result:
    """Run `prepare` on the first process, then on the other processes, which read the files that the first has written.

    On one machine, Lightning starts the other processes when the first process calls `fit`, so the files exist already.
    torchrun and SLURM start all processes at the same time, so the other processes wait for the first.

    Raises:
        InputError, StoreError: raised by `prepare`, on the first process; other processes exit without a message.
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
        os.environ[STARTED_BY_FIRST] = str(os.getpid())  # the other processes inherit it
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


def add_up(trainer: "Trainer", values: "Tensor") -> "Tensor":
    """Sum a tensor over all processes, all of which must call this function.

    `Strategy.reduce` of Lightning would call `barrier()` first, which waits for the device.
    """
    if trainer.world_size == 1:
        return values
    import torch.distributed as dist

    total = values.clone()
    dist.all_reduce(total)
    return total


def highest(trainer: "Trainer", values: Sequence[int]) -> list[int]:
    """Return the highest value of all processes at each place; all processes must call this function.

    The values are in the CPU's memory and have a process group of their own, so that the device is not waited for.
    """
    if trainer.world_size == 1:
        return list(values)
    import torch
    import torch.distributed as dist

    if not _OF_CPU:
        _OF_CPU.append(dist.new_group(backend="gloo"))
    of_all = torch.tensor(values)
    dist.all_reduce(of_all, dist.ReduceOp.MAX, group=_OF_CPU[0])
    return of_all.tolist()


def gather(trainer: "Trainer", own: list[Result]) -> list[Result]:
    """Concatenate the lists of all processes in the order of ranks; all processes must call this function."""
    if trainer.world_size == 1:
        return own
    import torch.distributed as dist

    of_ranks: list[list[Result]] = [[] for _ in range(trainer.world_size)]
    dist.all_gather_object(of_ranks, own)
    return [result for of_rank in of_ranks for result in of_rank]


class TrainerProcesses:
    """The processes of a trainer (`asr.core.training.objective.Processes`).

    Args:
        trainer: trainer of the run.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self.is_first = bool(trainer.is_global_zero)
        self.device = trainer.strategy.root_device

    def add_up(self, values: "Tensor") -> "Tensor":
        """Sum a tensor over all processes."""
        return add_up(self._trainer, values)

    def gather(self, own: list[Result]) -> list[Result]:
        """Concatenate the lists of all processes in the order of ranks."""
        return gather(self._trainer, own)

    def fail_together(self, message: str) -> NoReturn:
        """Stop all processes; the first process reports the error."""
        fail_together(self._trainer, message)


def fail_together(trainer: "Trainer", message: str) -> NoReturn:
    """Stop all processes; the first process reports the error. All processes must call this function."""
    take_leave()
    if trainer.is_global_zero:
        raise InputError(message)
    sys.exit(0)  # with another status, launchers would report a second failure


def take_leave() -> None:
    """Destroy the process group, after the last communication.

    At Python's exit, Gloo's threads might still hold tensors and abort the process (pytorch issue 179291).
    """
    import torch.distributed as dist

    if dist.is_initialized():
        # DDP also refers to the group. If DDP's reference were the last to be freed, Gloo's threads would be joined
        # while the GIL is held. One of them may need the GIL to free the tensors of the last communication, which
        # would be a deadlock.
        _LEFT.extend([dist.group.WORLD, *_OF_CPU])
        _OF_CPU.clear()
        atexit.register(_let_go)
        dist.destroy_process_group()


def _let_go() -> None:
    """Free DDP's reference to the process group first; Python then frees the group without a deadlock."""
    gc.collect()
    _LEFT.clear()


def stop_others(trainer: "Trainer") -> None:
    """Kill the child processes of this process, which is ending; otherwise they would hang or log errors."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    # torch's SIGCHLD handler would raise an error here when a worker is killed.
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if in_main_thread else None
    for worker in multiprocessing.active_children():  # data loading workers, which ignore SIGTERM
        worker.kill()
        if in_main_thread:
            worker.join()
    if before is not None:
        signal.signal(signal.SIGCHLD, before)
    for process in started_processes(trainer):
        process.kill()


def _watch_others(trainer: "Trainer") -> None:
    """Watch the processes that Lightning will start, in a thread of this process."""

    def watch() -> None:
        threading.Thread(target=_end_with_others, args=(trainer,), daemon=True, name="watch of other processes").start()

    replace_process_watch(watch)


def _end_with_others(trainer: "Trainer") -> None:
    """Wait until a child process fails; then end all processes, as this process may hang in a collective operation."""
    while (lost := _lost_process(trainer)) is None:
        if trainer.state.stopped or all(process.poll() == 0 for process in started_processes(trainer)):
            return
        time.sleep(POLL_SECONDS)
    time.sleep(GRACE_SECONDS)
    if trainer.state.stopped:  # this process is already stopping after the failure
        return
    logger.error("error: %s", lost)
    stop_others(trainer)
    sys.stdout.flush()
    os._exit(1)


def _lost_process(trainer: "Trainer") -> str | None:
    """Return an error message about a child process that has failed; None if no process has failed."""
    for number, process in enumerate(started_processes(trainer), start=trainer.global_rank + 2):
        status = process.poll()
        if status:
            end = f"was killed by {_signal_name(-status)}" if status < 0 else f"failed with exit status {status}"
            return _must_live(trainer, f"process {number} {end}")
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _must_live(trainer: "Trainer", problem: str) -> str:
    return f"all {trainer.world_size} processes must run to the end; {problem}. Run the same command to resume."


def report_lost_connection(trainer: "Trainer") -> NoReturn:
    """End this process because another process has ended; name that process if it is a child of this process."""
    if STARTED_BY_FIRST in os.environ and trainer.local_rank > 0:
        sys.exit(0)
    end = time.monotonic() + GRACE_SECONDS  # connections close slightly before their process ends
    while (lost := _lost_process(trainer)) is None and started_processes(trainer) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    raise InputError(lost or _must_live(trainer, f"process {trainer.global_rank + 1} lost a connection")) from None


def is_lost_connection(error: Exception) -> bool:
    """Return whether an exception means that another process has ended."""
    import torch.distributed as dist

    texts = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    return isinstance(error, dist.DistError) or any(text in str(error) for text in texts)
