"""Commands that are configured by conf/train.yaml and overrides: composition, logging, errors and exit status."""

import errno
import gc
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from asr.base.settings.conf import CONF, files, names
from asr.base.settings.plugins import NAMES as NAMES_OF_PLUGINS
from asr.base.settings.plugins import homes, use
from asr.base.settings.rule import ONLY_IN_QUOTES
from asr.base.storage.location import without_secrets
from asr.base.system.files import NO_ROOM
from asr.base.system.processes import (
    INTERRUPTED,
    end_without_reader,
    keep_memory,
    reader_has_gone,
    spin_briefly,
    use_huge_pages,
)
from asr.base.system.signals import Stopped, requeue
from asr.base.text.printable import LineFormatter
from asr.core.training.overrides import NAMES, in_quotes, readable, settings_named
from asr.errors import InputError, StoreError, how_to_install, one_line

if TYPE_CHECKING:
    from hydra.errors import CompactHydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from asr.core.run.settings import RunSettings, TrainingSettings
    from asr.core.training.objective import Objective

Command = Callable[[Any], float | None]  # takes a run's settings; returns the value that a sweep minimises, or None
Reader = Callable[[Mapping[str, Any], Sequence[str]], Any]  # makes checked settings from config and overrides

PRINTING = {"-h", "--help", "-c", "--cfg", "-i", "--info", "--hydra-help", "--version"}  # options that only print
HYDRA_ADVICE = (
    "To append",
    "Config search path",
    "\tprovider",
)  # prefixes of unhelpful lines in Hydra's messages
MAX_NAME_LENGTH = 100  # maximum number of characters of a folder name that consists of overrides
SWEEP_PACKAGES = {  # for each file of conf/sweep/: the package that it needs, and the extra of asr with this package
    "optuna": ("hydra-optuna-sweeper", "optuna"),
    "slurm": ("hydra-submitit-launcher", "submitit"),
}

logger = logging.getLogger(__name__)


def read_experiment(resolved: Mapping[str, Any], overrides: Sequence[str], command: str | None = None) -> Any:
    """Read and check the settings of a training, as its objective does.

    Args:
        resolved: the config.
        overrides: overrides of the command line; they take precedence over the components of a model in `init.from`.
        command: name of the command; another objective than its own is refused. None: it is not checked.
    """
    from asr.core.build import build_objective
    from asr.core.run.settings import command_of

    if command is not None and (other := command_of(resolved)) != command:
        must, name = f"objective must be one of asr.{command}", resolved["objective"]["name"]
        raise InputError(f"{must}; got {name}, whose settings are those of asr.{other}. Train it with asr.{other}.")
    objective: Objective[TrainingSettings, Any] = build_objective(resolved)
    settings = objective.read(resolved, overrides)
    objective.check(settings.components)
    return settings


def read_recognition(resolved: Mapping[str, Any], overrides: Sequence[str]) -> "RunSettings":
    """Read and check the settings of conf/train.yaml for a command that examines the training of a recogniser."""
    settings: RunSettings = read_experiment(resolved, overrides, "train")
    if (name := settings.components["objective"]["name"]) != "recognition":
        must = "objective must be recognition here, because only its training is forecast"
        raise InputError(f"{must}; got {name}. asr.train with this objective logs its steps before the first one.")
    return settings


def compose_settings(overrides: Sequence[str], root: str = "train") -> Any:
    """Return the settings that asr.<root> with these overrides would have."""
    from hydra import compose
    from hydra.errors import CompactHydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = readable_arguments(overrides, root)
    try:
        with initialized_hydra():
            composed: Any = OmegaConf.to_container(compose(root, list(overrides)), resolve=True, throw_on_missing=True)
    except (CompactHydraException, OmegaConfBaseException) as error:
        raise InputError(composition_error(error)) from None
    return read_experiment(composed, overrides, root)


def experiment_command(command: Command, root: str = "train", read: Reader | None = None) -> Callable[[], None]:
    """Make a command-line program from a function of run settings; Hydra composes the config.

    A user's error is printed as one line, with exit status 1. Hydra's sweepers receive the command's return value.

    Args:
        command: function to run.
        root: name of the primary config, a file of conf/ without its suffix.
        read: makes the settings from the config; by default as the objective does.
    """
    reader = read or partial(read_experiment, command=root)

    failed: list[str] = []  # folders of the failed jobs of a --multirun

    def main(composed: "DictConfig") -> float | None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            resolved: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            sys.exit(f"error: {composition_error(error)}")
        return run_job(partial(_in_own_folder, command, failed), resolved, HydraConfig.get().overrides.task, reader)

    def program() -> None:
        if PRINTING & set(sys.argv[1:]):
            end_without_reader()
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(help_text(command, root))
            return
        try:
            check_sweep_packages(sys.argv[1:])
            use(plugins_named(sys.argv[1:]))
            sys.argv[1:] = readable_arguments(sys.argv[1:], root)
        except InputError as error:
            sys.exit(f"error: {error}")
        spin_briefly()
        keep_memory()
        use_huge_pages()
        import hydra
        from hydra.errors import CompactHydraException
        from omegaconf.errors import OmegaConfBaseException

        search_plugins()
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # makes Hydra raise its errors instead of exiting
        try:
            hydra.main(config_path=str(CONF), config_name=root, **hydra_rules())(main)()
        except (CompactHydraException, OmegaConfBaseException) as error:
            sys.exit(f"error: {composition_error(error)}")
        gc.freeze()  # avoids garbage collection at exit, which takes most of a second with Lightning
        if reader_has_gone() or failed:
            sys.exit(1)

    return program


def hydra_rules() -> dict[str, Any]:
    """Return the arguments that choose Hydra's rules: Hydra 1.4 has those of 1.3, and deprecates version_base."""
    import hydra

    return {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


def initialized_hydra() -> AbstractContextManager[None]:
    """Return a context in which Hydra composes the files in conf/ of asr, of its apps and of the plugins."""
    from hydra import initialize_config_dir

    search_plugins()
    return initialize_config_dir(str(CONF), **hydra_rules())


def readable_arguments(arguments: Sequence[str], root: str) -> list[str]:
    """Return the arguments with quotes around values that Hydra's grammar would refuse; check the options.

    `root` is the name of the primary config.
    """
    from hydra import compose
    from hydra._internal.utils import get_args_parser
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    def refuse(message: str) -> NoReturn:
        must = "options must be those of --hydra-help, and settings must be KEY=VALUE"
        unknown = re.search(r"unrecognized arguments: (?:.* )?--?([^\s=]+)", message)
        if unknown is None:
            raise InputError(f"{must}; got: {message}.")
        with initialized_hydra():
            composed: Any = OmegaConf.to_container(compose(root))
        raise InputError(f"{must}; got --{unknown[1]}.{did_you_mean(settings_named(unknown[1], composed))}")

    grammar, options = OverridesParser.create(), get_args_parser()
    options.error = refuse  # type: ignore[method-assign]
    is_sweep = options.parse_args(list(arguments)).multirun
    for group in (match[1] for argument in arguments if (match := re.fullmatch(r"([\w/]+)=null", argument))):
        if present := names(group):
            must = f"{group} must be one of {', '.join(present)}"
            raise InputError(f"{must}; got null. Leave it out, or remove the choice of an experiment by ~{group}.")

    def parses(override: str) -> bool:
        try:
            grammar.parse_override(override)
        except HydraException:
            return False
        return True

    return [readable(argument, parses, is_sweep) for argument in arguments]


def plugins_named(arguments: Sequence[str]) -> list[str]:
    """Return the plugins that overrides, or the experiments that they choose, name: needed before the composition."""
    import yaml

    words = [word for argument in arguments for word in re.split("(?<=^--config-dir)=", argument)]
    folders = [CONF, *(Path(value) for option, value in pairwise(words) if option in ("--config-dir", "-cd"))]
    given = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith("plugins=")]
    for argument in arguments:
        if argument.lstrip("+").startswith("experiment="):
            for folder in folders:
                path = folder / "experiment" / f"{argument.partition('=')[2]}.yaml"
                if path.is_file():
                    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
                    given += (settings or {}).get("plugins") or []
    return [name for text in given for name in re.split(r"[\s,\[\]'\"]+", text) if name]


@cache
def search_plugins() -> None:
    """Let Hydra find the YAML files of apps and of the plugins, after those of asr."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class PluginFolders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for home in homes()[1:]:
                if home.conf.is_dir():
                    search_path.append(home.package, f"file://{home.conf}")

    Plugins.instance().register(PluginFolders)


def composition_error(error: "CompactHydraException | OmegaConfBaseException") -> str:
    """Return an error of composition, or of a reference in the config, as one line: what must hold, what was given."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf import MISSING, DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OmegaConfBaseException):
        key = "run_dir" if error.full_key == "hydra.sweep.dir" else error.full_key  # its value is that of run_dir
        must = f"{key} must have a value, not {MISSING}, and refer by ${{...}} only to settings that exist"
        return f"{must}; got: {str(error).splitlines()[0]}. In a text, write \\${{ instead of ${{."
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        present = names(group)
        if group and present:
            of_field = NAMES.get(group, {}).get(name)
            similar = did_you_mean([of_field]) if of_field else _similar(name, present)
            return f"{group} must be one of {', '.join(present)}; got {name!r}.{similar}"
    if isinstance(error, OverrideParseException):
        hint = f" Give {in_quotes(error.override)}." if "=" in error.override else ""
        return f"an override must be KEY=VALUE, in quotes if it has spaces; got {error.override!r}.{hint}"
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig):
        section, _, key = cause.full_key.rpartition(".")
        keys = sorted(map(str, cause.parent_node))
        if keys and key not in keys:
            more = f" +{cause.full_key}=VALUE passes {key} to Lightning's Trainer." if section == "trainer" else ""
            has = f"{section or 'the config'} has {', '.join(keys)}"
            composed: Any = OmegaConf.to_container(cause.parent_node._get_root())
            meant = settings_named(key, {name: value for name, value in composed.items() if name != "hydra"})
            group, is_group, part = key.partition("/")
            within = _paths_to(*((group, part) if is_group else (section, key)), composed)
            within = [name.replace(".", "/") for name in within] if is_group else within
            if (section or within) and (similar := did_you_mean(within) or _similar(key, keys)):
                return f"{cause.full_key} must be a setting; {has}.{similar}{more}"
            return f"{cause.full_key} must be a setting; {has}.{did_you_mean(meant) or _similar(key, keys) or more}"
    absent = re.match(r"Could not override '([a-z_]+)/([a-z_]+)'", str(error))
    if absent and (owners := _with_part(*absent.groups())):
        choices = ", ".join(f"{absent[1]}={owner}" for owner in owners)
        return f"{absent[1]}/{absent[2]} must be a part of the chosen {absent[1]}. Choose one that has it: {choices}."
    return _one_line([*str(error).splitlines(), *(str(cause).splitlines() if cause else [])])


def _with_part(group: str, part: str) -> list[str]:
    """Return the files of a group in conf/ that have a section `part`."""
    return [
        file.stem
        for file in files(group)
        if re.search(rf"^ *- {part}: ", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def _paths_to(section: str, key: str, composed: Mapping[str, Any]) -> list[str]:
    """Return the names of settings and sections within a section, not directly, that are called `key`."""

    def inside(name: str, value: Any) -> Iterator[str]:
        for each, below in value.items() if isinstance(value, Mapping) else ():
            if each == key:
                yield f"{name}.{each}"
            yield from inside(f"{name}.{each}", below)

    return [*inside(section, composed.get(section))]


def _similar(name: str, names: Collection[str]) -> str:
    matches = get_close_matches(name, names, n=1) or [other for other in names if name in other.split("_")]
    return did_you_mean(matches) if len(matches) == 1 else ""


def did_you_mean(names: Sequence[str]) -> str:
    """Return a question for the end of an error message; "" without names."""
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _one_line(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip() and not line.startswith(HYDRA_ADVICE))


def check_sweep_packages(arguments: Sequence[str]) -> None:
    """Check that the packages of `sweep=[...]` are installed; Hydra's own error would not name the package."""
    chosen = next((argument for argument in arguments if argument.startswith("sweep=")), "")
    for name, (package, extra) in SWEEP_PACKAGES.items():
        if name in re.split(r"[^a-z]+", chosen.removeprefix("sweep=")):
            try:
                distribution(package)
            except PackageNotFoundError:
                must = f"sweep=[{name}] needs the package {package}; it is not installed"
                raise InputError(f"{must}. {how_to_install(extra)}") from None


def help_text(command: Command, root: str) -> str:
    """Return the help page: the command's description, the files of conf/, and the settings with their comments."""
    settings = (CONF / f"{root}.yaml").read_text(encoding="utf-8").strip()
    chosen = set(re.findall(r"^  - (\w+): ", settings, re.MULTILINE))
    groups: dict[str, list[str]] = {}
    files = (path.relative_to(home.conf) for home in homes() for path in home.conf.glob("*/**/*.yaml"))
    for file in sorted(files):
        if file.parts[0] in chosen:
            groups.setdefault(file.parent.as_posix(), []).append(file.stem)
    return HELP.format(
        about=(sys.modules[command.__module__].__doc__ or "").strip(),
        example="(encoder=transformer) or changes a setting (encoder.num_layers=8)"
        if "encoder" in chosen
        else "(token_model=lstm) or changes a setting (token_model.num_layers=2)",
        groups="\n".join(f"  {group}: {', '.join(names)}" for group, names in groups.items()),
        root=root,
        settings=settings,
    )


HELP = """{about}

An override chooses a file of conf/ {example}. The files:

{groups}

conf/{root}.yaml has the default choices, and the settings outside of components:

{settings}

A short trial: trainer.max_steps=40.
--cfg job prints all settings with the overrides applied, and exits. --hydra-help lists Hydra's own options.
"""


def run_job(
    command: Command, resolved: Mapping[str, Any], overrides: Sequence[str] = (), read: Reader = read_experiment
) -> float | None:
    """Read the settings and run a command.

    An error of the user or of a store is logged as one line, with exit status 1. The exit status after a signal is
    128 + the signal's number.
    """
    start_log()
    threading.excepthook = _report_thread
    try:
        _check_unsigned(resolved)
        NAMES_OF_PLUGINS.check("plugins", resolved.get("plugins", []))
        use(resolved.get("plugins", []))  # sweeps may run the job in another process than the composition
        settings = read(resolved, overrides)
        return _with_its_error_logged(command, settings)
    except (InputError, StoreError) as error:
        logger.error("error: %s%s", error, _in_quotes(str(error), overrides))
        sys.exit(1)
    except BrokenPipeError:
        if not reader_has_gone():  # the broken pipe is not stdout; it is, for example, a worker's
            raise
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        hint = "Free disk space and run the same command to resume"
        logger.error("error: the disk must have room for the run; got: %s. %s", error, hint)
        sys.exit(1)
    except Stopped as stopped:
        logger.warning("%s: run the same command to resume", stopped)
        if settings.resume.requeue:
            requeue(stopped)
        sys.exit(stopped.status)
    except KeyboardInterrupt:
        logger.error("interrupted")
        sys.exit(INTERRUPTED)


def _with_its_error_logged(command: Command, settings: Any) -> float | None:
    """Run a command; an error for which `run_job` has no message also ends the run's log, not only standard error."""
    try:
        return command(settings)
    except (InputError, StoreError, Stopped):
        raise
    except Exception as error:
        if not isinstance(error, OSError) or error.errno not in (*NO_ROOM, errno.EPIPE):
            logger.error("error: %s: %s", type(error).__name__, one_line(error))
        raise


def _in_quotes(message: str, overrides: Sequence[str]) -> str:
    """Return an override in quotes, for a message that refuses a number as a text; otherwise return ""."""
    if ONLY_IN_QUOTES in message:
        for override in overrides:
            if message.startswith(f"{override.lstrip('+').partition('=')[0]} must be"):
                return f" Give {in_quotes(override)}."
    return ""


def _report_thread(arguments: threading.ExceptHookArgs) -> None:
    """Print the traceback of an error in a thread, unless the disk is full: TensorBoard raises it in `run_job`, too."""
    if not isinstance(arguments.exc_value, OSError) or arguments.exc_value.errno not in NO_ROOM:
        threading.__excepthook__(arguments)


def _check_unsigned(setting: Any) -> None:
    """Check that no setting is a URL with a signature or password, which config.yaml and the report would store."""
    if isinstance(setting, Mapping):
        setting = list(setting.values())
    if isinstance(setting, list):
        for value in setting:
            _check_unsigned(value)
    elif isinstance(setting, str) and without_secrets(setting) != setting:
        must = "a URL in a setting must have no query and no password, because config.yaml would store it"
        raise InputError(f"{must}; got {without_secrets(setting)}?.... Use s3://, and credentials in the environment.")


def start_log() -> None:
    """Log to stderr."""
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(LineFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    ours = logging.getLogger("asr")
    ours.handlers = [to_stderr]
    ours.setLevel(logging.INFO)


def _in_own_folder(command: Command, failed: list[str], settings: Any) -> float | None:
    """Run a job of a `--multirun` in its own folder in `run_dir`, named by its overrides or by its number.

    The folder of a failed job is added to `failed`; the next jobs still run.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        return command(settings)
    if settings.trainer.devices != 1:
        must = "--multirun must train on one device, because its jobs share a process"
        raise InputError(f"{must}; got trainer.devices={settings.trainer.devices}. Start these runs one by one.")
    if "data.batch_seconds=auto" in hydra_config.overrides.task:
        must = "data.batch_seconds must be a number with --multirun, so that its runs can be compared"
        raise InputError(f"{must}; got 'auto'. python -m asr.plan data.batch_seconds=auto finds the number.")
    named, number = hydra_config.job.override_dirname.replace("/", "_"), str(hydra_config.job.num)
    run_dir = str(Path(settings.run_dir, named if 0 < len(named) <= MAX_NAME_LENGTH else number))
    try:
        return command(replace(settings, run_dir=run_dir))
    except (InputError, StoreError) as error:
        logger.error("error: %s", error)
        failed.append(run_dir)
        return None  # Optuna counts the trial as failed
