"""Loggers of metrics: metrics.csv, TensorBoard, and the services that the settings choose."""

import importlib.util
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from asr.build import component
from asr.errors import InputError, how_to_install, shown
from asr.run.names import METRICS
from asr.training.metrics import MetricsFile


def make_loggers(
    components: Mapping[str, Any],
    resolved: Mapping[str, Any],
    run_dir: Path,
    run_id: str,
    step: int,
    tensorboard: TensorBoardLogger,
) -> list[Logger]:
    """Make the loggers of a run.

    Args:
        components: components of the run, including its loggers.
        resolved: all settings of the run, which services store.
        run_dir: the run folder.
        run_id: id of the run; it does not change when the run is resumed.
        step: number of optimizer steps that the run has completed.
        tensorboard: TensorBoard logger of the run.
    """
    others = [make(run_dir, run_id, resolved) for make in chosen_loggers(components)]
    return [MetricsFile(run_dir / METRICS, step), tensorboard, *others]


def chosen_loggers(components: Mapping[str, Any]) -> list[partial[Logger]]:
    """Return the loggers of services that the settings choose; a logger has the name of the package that it needs.

    Raises:
        InputError: the logger does not exist, its package is not installed, or a setting is invalid.
    """
    chosen = components.get("logger") or {}
    if not isinstance(chosen, Mapping):
        raise InputError(f"logger must map names of loggers, such as wandb, to their settings; got {shown(chosen)}.")
    loggers = [
        component("training/logger", {"name": name, **settings}, f"logger.{name}") for name, settings in chosen.items()
    ]
    for name in chosen:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name is not a package
            raise InputError(f"logger={name} needs the package {name}; it is not installed. {how_to_install(name)}")
    return loggers
