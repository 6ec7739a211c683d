"""A training from the data to the tested bundle, for any objective."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch

from asr.core import build
from asr.core.run.run import Run, open_run
from asr.core.run.run_bundle import best_score
from asr.core.run.settings import TrainingSettings
from asr.core.training.callbacks import chosen_callbacks, memory_check, weights_and_patience
from asr.core.training.distributed import first_then_all
from asr.core.training.fit import fit
from asr.core.training.objective import FindBatchSeconds, Objective
from asr.core.training.sharding import shard_in_fit
from asr.core.training.task import TrainingTask
from asr.core.training.trainer import accumulate, equip, make_trainer
from asr.errors import InputError

S = TypeVar("S", bound=TrainingSettings)

logger = logging.getLogger(__name__)


def run_training(
    settings: S,
    leave_report: Callable[[Path], None] | None = None,
    find_batch_seconds: FindBatchSeconds | None = None,
    try_largest: Callable[..., None] | None = None,
) -> float | None:
    """Train, and write and test the bundle.

    Args:
        settings: settings of the run.
        leave_report: writes the report of the run's folder, after the bundle is tested; None: there is none.
        find_batch_seconds: finds a number for `data.batch_seconds=auto`; None: this value is refused.
        try_largest: takes a step on the largest batches before the training; None: they are not tried.

    Returns:
        The best result of the validations of the stored checkpoints, in the objective's measure, which a sweep
        minimises; None without a validation.
    """
    objective: Objective[S, Any] = build.build_objective(settings.components)
    trainer = make_trainer(settings)
    of_plugins = chosen_callbacks(settings.components)  # refused before any data is read

    def prepare() -> tuple[Run[S], Any]:
        return objective.prepare(open_run(settings, trainer.global_rank, trainer.world_size), find_batch_seconds)

    run, inputs = first_then_all(trainer, prepare)
    settings = run.settings
    accumulate(trainer, settings.trainer.accumulate_grad_batches)
    torch.set_num_threads(settings.num_threads)
    pl.seed_everything(settings.seed, verbose=False)
    trainable, data, of_objective, inputs = objective.build(run, inputs)
    record = run.record(data.total_steps)
    logger.info("%d steps: %s", record.total_steps, settings.trainer.bounds)
    task = TrainingTask(trainable, objective.measure, run, record.total_steps)
    shard_in_fit(trainer, task, trainable.blocks, ["losses"])
    callbacks = [*memory_check(try_largest, data), *of_objective]
    callbacks += [*weights_and_patience(trainer, settings, objective.measure), *of_plugins]
    stop = equip(trainer, run, record, data, objective.measure, callbacks)
    early_end = fit(trainer, task, data, run, stop)
    if trainer.is_global_zero:
        try:
            objective.finish(run, inputs, trainer.strategy.root_device)
        except InputError:
            _report(run.dir, leave_report)
            raise
        _report(run.dir, leave_report)
        if early_end is not None:
            logger.info(early_end)
    return best_score(run.dir)


def _report(run_dir: Path, leave_report: Callable[[Path], None] | None) -> None:
    """Write the report of a run folder."""
    if leave_report is None:
        logger.info("report.html is left out, because the folder asr/apps/report is absent")
    else:
        leave_report(run_dir)
