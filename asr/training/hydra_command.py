"""Commands that take an experiment, conf/train.yaml with overrides: how it is composed, how they log and end."""

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.errors import InputError, StoreError, how_to_install
from asr.settings.conf import CONF
from asr.storage.location import without_secrets
from asr.system.files import NO_ROOM
from asr.system.processes import INTERRUPTED, end_without_reader, keep_memory, reader_has_gone, spin_briefly
from asr.text.printable import LineFormatter
from asr.training.signals import Stopped, requeue

if TYPE_CHECKING:
    from hydra.errors import CompactHydraException
    from omegaconf import DictConfig

    from asr.run.settings import RunSettings

Command = Callable[[Any], float | None]  # of a run's settings; returns what a sweep minimises, if anything
Reader = Callable[[Mapping[str, Any], Sequence[str]], Any]  # config and overrides to a run's settings, checked

PRINTING = {"-h", "--help", "-c", "--cfg", "-i", "--info", "--hydra-help", "--version"}  # and nothing else is done
HYDRA_ADVICE = ("To append", "Config search path", "\tprovider")  # lines of its messages that do not help here
LONGEST_NAME = 100  # of a folder named by overrides
SWEEP_PACKAGES = {  # files of conf/sweep/: the package that each needs, and our extra that installs it
    "optuna": ("hydra-optuna-sweeper", "optuna"),
    "slurm": ("hydra-submitit-launcher", "submitit"),
}

logger = logging.getLogger(__name__)


def read_experiment(resolved: Mapping[str, Any], overrides: Sequence[str]) -> "RunSettings":
    """Read and check the settings of conf/train.yaml.

    Args:
        resolved: the config.
        overrides: of the command line, which made the config: they stand against a model that it starts from.

    Raises:
        InputError: a setting does not hold.
    """
    from asr.build import check_components
    from asr.run.initialization import with_parts
    from asr.run.settings import read_run_settings

    settings = with_parts(read_run_settings(resolved), overrides)
    check_components(settings.components)
    return settings


def experiment_command(command: Command, root: str = "train", read: Reader = read_experiment) -> Callable[[], None]:
    """Make a program of a function of run settings: composed from conf/ and the command line by Hydra.

    What the user got wrong is one line and exit status 1. What the command returns is for Hydra's sweepers.

    Args:
        command: the function.
        root: file of conf/ that names the others.
        read: reads its settings.
    """

    failed: list[str] = []  # jobs of a --multirun

    def main(composed: "DictConfig") -> float | None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        resolved: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
        return run_job(partial(_in_own_folder, command, failed), resolved, HydraConfig.get().overrides.task, read)

    def program() -> None:
        if PRINTING & set(sys.argv[1:]):
            end_without_reader()
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(help_text(command, root))
            return
        try:
            check_sweep_packages(sys.argv[1:])
        except InputError as error:
            sys.exit(f"error: {error}")
        spin_briefly()
        keep_memory()
        import hydra
        from hydra.errors import CompactHydraException

        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises its errors, and does not print and exit
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=root)(main)()
        except CompactHydraException as error:
            sys.exit(f"error: {composition_error(error)}")
        gc.freeze()  # Python would look through all of Lightning for garbage before it ends, for most of a second
        if reader_has_gone() or failed:
            sys.exit(1)

    return program


def composition_error(error: "CompactHydraException") -> str:
    """Return one line that says what must hold, what was given, and what to do.

    Args:
        error: raised by Hydra while it composed the config; its own text has several lines.
    """
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        names = sorted(path.stem for path in CONF.joinpath(group).glob("*.yaml"))
        if group and names:
            return f"{group} must be one of {', '.join(names)}; got {name!r}.{_similar(name, names)}"
    if isinstance(error, OverrideParseException):
        return f"an override must be KEY=VALUE, quoted for the shell where it has spaces; got {error.override!r}."
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig):
        section, _, key = cause.full_key.rpartition(".")
        keys = sorted(map(str, cause.parent_node))
        if keys and key not in keys:
            more = f" +{cause.full_key}=VALUE passes {key} to Lightning's Trainer." if section == "trainer" else ""
            has = f"{section or 'the config'} has {', '.join(keys)}"
            return f"{cause.full_key} must be a setting; {has}.{_similar(key, keys)}{more}"
    return _one_line([*str(error).splitlines(), *(str(cause).splitlines() if cause else [])])


def _similar(name: str, names: Collection[str]) -> str:
    matches = get_close_matches(name, names, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip() and not line.startswith(HYDRA_ADVICE))


def check_sweep_packages(arguments: Sequence[str]) -> None:
    """Check that the packages of `sweep=[...]` are installed, which Hydra says in terms of its own.

    Raises:
        InputError: one is not.
    """
    chosen = next((argument for argument in arguments if argument.startswith("sweep=")), "")
    for name, (package, extra) in SWEEP_PACKAGES.items():
        if name in re.split(r"[^a-z]+", chosen.removeprefix("sweep=")):
            try:
                distribution(package)
            except PackageNotFoundError:
                must = f"sweep=[{name}] needs the package {package}; it is not installed"
                raise InputError(f"{must}. {how_to_install(extra)}") from None


def help_text(command: Command, root: str) -> str:
    """Say what the command does, which files of conf/ are there to be chosen, and the settings with their comments."""
    settings = (CONF / f"{root}.yaml").read_text(encoding="utf-8").strip()
    chosen = set(re.findall(r"^  - (\w+): ", settings, re.MULTILINE))
    groups: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        if path.relative_to(CONF).parts[0] in chosen:
            groups.setdefault(path.parent.relative_to(CONF).as_posix(), []).append(path.stem)
    return HELP.format(
        about=(sys.modules[command.__module__].__doc__ or "").strip(),
        example="encoder=transformer say, or gives a setting, encoder.num_layers=8 say"
        if "encoder" in chosen
        else "token_model=lstm say, or gives a setting, token_model.num_layers=2 say",
        groups="\n".join(f"  {group}: {', '.join(names)}" for group, names in groups.items()),
        root=root,
        settings=settings,
    )


HELP = """{about}

An override chooses a file of conf/, {example}. The files:

{groups}

conf/{root}.yaml says which of them are taken without an override, and the settings that are of no component:

{settings}

With --cfg job all settings are printed as the overrides leave them, and nothing is done; --hydra-help has the rest.
"""


def run_job(
    command: Command, resolved: Mapping[str, Any], overrides: Sequence[str] = (), read: Reader = read_experiment
) -> float | None:
    """Read the settings and run a command.

    An error of the user or of a store is one line and exit status 1; a signal is exit status 128 + its number.

    Args:
        command: what to run.
        resolved: the config.
        overrides: of the command line, which made the config.
        read: reads the settings.
    """
    start_log()
    try:
        _check_unsigned(resolved)
        settings = read(resolved, overrides)
        return command(settings)
    except (InputError, StoreError) as error:
        logger.error("error: %s", error)
        sys.exit(1)
    except BrokenPipeError:
        if not reader_has_gone():  # it was another pipe, to a process that reads audio say
            raise
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.error("error: the disk must have room for the run; %s. Make some, and run the same command again", error)
        sys.exit(1)
    except Stopped as stopped:
        logger.warning("%s: run the same command to resume", stopped)
        if settings.resume.requeue:
            requeue(stopped)
        sys.exit(stopped.status)
    except KeyboardInterrupt:
        logger.error("interrupted")
        sys.exit(INTERRUPTED)


def _check_unsigned(setting: Any) -> None:
    """Check that no setting is a URL with a signature or a password, which config.yaml and the report would keep.

    Raises:
        InputError: one is; the message leaves out the secret.
    """
    if isinstance(setting, Mapping):
        setting = list(setting.values())
    if isinstance(setting, list):
        for value in setting:
            _check_unsigned(value)
    elif isinstance(setting, str) and without_secrets(setting) != setting:
        must = "a setting must not hold a URL with a query or a password, since config.yaml would keep it"
        raise InputError(f"{must}; got {without_secrets(setting)}?.... Use s3://, and credentials in the environment.")


def start_log() -> None:
    """Log to stderr."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(LineFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("asr")
    ours.handlers = [to_stderr]
    ours.setLevel(logging.INFO)


def _in_own_folder(command: Command, failed: list[str], settings: Any) -> float | None:
    """Give each job of a `--multirun` a folder of its own in `run_dir`: named by its overrides, or by its number.

    A job that fails does not keep the next one from its turn; it is added to `failed`.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        return command(settings)
    if settings.trainer.devices != 1:
        must = "--multirun must train on one device, since its jobs share a process"
        raise InputError(f"{must}; got trainer.devices={settings.trainer.devices}. Start such runs one by one.")
    named, number = hydra_config.job.override_dirname.replace("/", "_"), str(hydra_config.job.num)
    run_dir = str(Path(settings.run_dir, named if 0 < len(named) <= LONGEST_NAME else number))
    try:
        return command(replace(settings, run_dir=run_dir))
    except (InputError, StoreError) as error:
        logger.error("error: %s", error)
        failed.append(run_dir)
        return None  # to Optuna a failed trial
