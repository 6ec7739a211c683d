"""One process or many: who prepares a run, and who goes when the first one does."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from asr.errors import InputError
from asr.processes import die_with_parent

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Prepared = TypeVar("Prepared")
Found = TypeVar("Found")

STARTED_BY_FIRST = "ASR_STARTED_BY_FIRST_PROCESS"  # environment: Lightning has started this process, for the first one


def first_then_all(trainer: "Trainer", prepare: Callable[[], Prepared]) -> Prepared:
    """Run `prepare` on the first process, and then on the others, which find what it has written.

    Lightning starts the other processes of one machine when the first one comes to `fit`, so they find it anyway.
    torchrun and SLURM start all at once; there the others wait.

    Raises:
        InputError: from `prepare`, on the first process; the others end without a word.
    """
    strategy = trainer.strategy
    environment = getattr(strategy, "cluster_environment", None)
    if trainer.world_size == 1 or environment is None:
        return prepare()
    if STARTED_BY_FIRST in os.environ:
        die_with_parent()
        return prepare()
    if not environment.creates_processes_externally:
        prepared = prepare()
        os.environ[STARTED_BY_FIRST] = "1"  # the others inherit it
        return prepared
    strategy.setup_environment()
    problem: InputError | None = None
    if trainer.global_rank == 0:
        try:
            prepared = prepare()
        except InputError as error:
            problem = error
    failed = strategy.broadcast(problem is not None)
    if problem is not None:
        raise problem
    if failed:
        take_leave()
        sys.exit(0)
    return prepared if trainer.global_rank == 0 else prepare()


def gather(trainer: "Trainer", mine: list[Found]) -> list[Found]:
    """Join what each process has found, in the order of their ranks; to be called by all of them."""
    if trainer.world_size == 1:
        return mine
    import torch.distributed as dist

    found: list[list[Found]] = [[] for _ in range(trainer.world_size)]
    dist.all_gather_object(found, mine)
    return [one for theirs in found for one in theirs]


def fail_together(trainer: "Trainer", message: str) -> NoReturn:
    """Stop for a reason that all processes know: the first one says it.

    Raises:
        InputError: on the first process.
    """
    take_leave()
    if trainer.is_global_zero:
        raise InputError(message)
    sys.exit(0)  # with any other status, Lightning would kill the first one in mid-sentence


def take_leave() -> None:
    """Close what the processes exchange through, once all of them know that there is no more to say.

    Left to the end of Python, Gloo's threads may still hold tensors then, and abort the process (torch's #179291).
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def stop_others(trainer: "Trainer") -> None:
    """Kill the processes that belong to this one, which ends: without it they would wait, or complain."""
    for worker in multiprocessing.active_children():  # they read audio, and ignore what asks them to end
        worker.kill()
    launcher = trainer.strategy.launcher
    if launcher is not None and trainer.global_rank == 0:
        launcher.kill(signal.SIGKILL)


def is_lost_connection(error: Exception) -> bool:
    """Tell whether an exception says that another process is gone."""
    import torch.distributed as dist

    texts = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    return isinstance(error, dist.DistError) or any(text in str(error) for text in texts)
