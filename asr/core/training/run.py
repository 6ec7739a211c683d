"""A training from the data to the tested bundle, for any objective."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning.pytorch as pl
import torch

from asr.core import build
from asr.core.run.names import FAULTS
from asr.core.run.outcome import best_score
from asr.core.training.callbacks import chosen_callbacks
from asr.core.training.distributed import first_then_all
from asr.core.training.fit import fit
from asr.core.training.sharding import shard_in_fit
from asr.core.training.task import TrainingTask, Unreadable
from asr.core.training.trainer import accumulate, equip, make_trainer

if TYPE_CHECKING:
    from asr.core.data.position import Position
    from asr.core.objective.parts import Objective
    from asr.core.run.settings import TrainingSettings
    from asr.core.training.data_module import TrainingData

logger = logging.getLogger(__name__)


class TrainingOutcome(NamedTuple):
    """The end of a training.

    Args:
        score: the best result of the validations of the stored checkpoints, in the objective's measure, which a sweep
            minimises; None without a validation.
        results: results of the tests by name, on the first process; {} on the others.
    """

    score: float | None
    results: Mapping[str, Any]


def run_training(
    settings: "TrainingSettings",
    make_data: Callable[[Any, Any, "Position"], "TrainingData"],
    make_callbacks: Callable[[pl.Trainer, Any, TrainingTask, "TrainingData"], list[pl.Callback]],
    leave_report: Callable[[Path], None] | None,
    find_batch_seconds: Callable[..., float] | None = None,
) -> TrainingOutcome:
    """Train, and write and test the bundle.

    Args:
        settings: settings of the run.
        make_data: makes the data module from the settings, the objective's data and the position in the data.
        make_callbacks: makes the callbacks except checkpointing and those of plugins, from the trainer, what is
            prepared, task and data.
        leave_report: writes the report of the run's folder, after the bundle is tested; None: there is none.
        find_batch_seconds: finds a number for `data.batch_seconds=auto`; None: this value is refused.
    """
    objective: Objective = build.build_objective(settings.components)
    trainer = make_trainer(settings)
    of_process = trainer.global_rank, trainer.world_size
    chosen = chosen_callbacks(settings.components)  # refused before any data is read
    prepared = first_then_all(trainer, partial(objective.prepare, settings, *of_process, find_batch_seconds))
    settings, state = prepared.settings, prepared.state
    accumulate(trainer, settings.trainer.accumulate_grad_batches)
    torch.set_num_threads(settings.num_threads)
    pl.seed_everything(settings.seed, verbose=False)
    trainable, source = objective.build(prepared)
    data = make_data(settings, source, state.position)
    run = state.run(source.train.total_steps, settings.trainer.bounds)
    logger.info("%d steps: %s", run.total_steps, settings.trainer.bounds)
    task = TrainingTask(
        trainable,
        objective.measure,
        make_optimizer=partial(build.build_optimizer, settings.components, depths=trainable.depths),
        schedule=build.build_schedule(settings.components),
        total_steps=run.total_steps,
        seed=settings.seed,
        unreadable=Unreadable(source.max_unreadable, state.position.epoch, state.position.skipped),
        extra=prepared.extra,
        faults=state.run_dir / FAULTS,
    )
    shard_in_fit(trainer, task, trainable.blocks, ["losses"])
    others = make_callbacks(trainer, prepared, task, data) + chosen
    stop = equip(trainer, settings, state, run, data, task.measure, others)
    early_end = fit(trainer, task, data, state, stop, settings.trainer, run.total_steps)
    results: Mapping[str, Any] = {}
    if trainer.is_global_zero:
        results = objective.finish(prepared, source, trainer.strategy.root_device)
        if leave_report is not None:
            leave_report(state.run_dir)
        else:
            logger.info("report.html is left out, because the folder asr/apps/report is absent")
        if early_end is not None:
            logger.info(early_end)
    return TrainingOutcome(best_score(state.run_dir), results)
