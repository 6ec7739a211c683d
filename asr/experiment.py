"""What the commands share that take an experiment, conf/train.yaml with overrides: composition, log, how they end."""

import errno
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from asr.errors import InputError
from asr.interruption import Stopped, requeue
from asr.settings import CONF, check_settings

# Before torch is imported: threads that wait for one another spin for some 30 us, as long as a small net's operations
# last, and then sleep. Sleeping at once takes half as long again; spinning for long takes 10 times as long where the
# cores are shared.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LONGEST_NAME = 100  # of a folder named by overrides
INTERRUPTED = 130  # 128 + SIGINT, as shells count

logger = logging.getLogger(__name__)


def experiment_command(command: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Make a program of a function of the resolved config: composed from conf/ and the command line by Hydra.

    What the user got wrong is one line and exit status 1.
    """

    failed: list[str] = []  # jobs of a --multirun

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
    def main(composed: DictConfig) -> None:
        config: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
        run_job(partial(_in_own_folder, command, failed), config)

    def program() -> None:
        main()
        if failed:
            sys.exit(1)

    return program


def run_job(command: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Run a command; what the user got wrong is one line and exit status 1, a signal is 128 + its number."""
    start_log()
    try:
        check_settings(config)
        command(config)
    except InputError as error:
        logger.error("error: %s", error)
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.error("error: the disk must have room for the run; %s. Make some, and run the same command again", error)
        sys.exit(1)
    except Stopped as stopped:
        logger.warning("%s: the same command goes on from here", stopped)
        if config["resume"]["requeue"]:
            requeue(stopped)
        sys.exit(stopped.status)
    except KeyboardInterrupt:
        logger.error("interrupted")
        sys.exit(INTERRUPTED)


def start_log() -> None:
    """Log to stderr."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("asr")
    ours.handlers = [to_stderr]
    ours.setLevel(logging.INFO)


def _in_own_folder(command: Callable[[dict[str, Any]], None], failed: list[str], config: dict[str, Any]) -> None:
    """Give each job of a `--multirun` a folder of its own in `run_dir`: named by its overrides, or by its number.

    A job that fails does not keep the next one from its turn; it is added to `failed`.
    """
    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        command(config)
        return
    if config["trainer"]["devices"] != 1:
        must = "--multirun must train on one device, since its jobs share a process"
        raise InputError(f"{must}; got trainer.devices={config['trainer']['devices']}. Start such runs one by one.")
    named, number = hydra_config.job.override_dirname.replace("/", "_"), str(hydra_config.job.num)
    run_dir = str(Path(config["run_dir"], named if 0 < len(named) <= LONGEST_NAME else number))
    try:
        command(config | {"run_dir": run_dir})
    except InputError as error:
        logger.error("error: %s", error)
        failed.append(run_dir)
