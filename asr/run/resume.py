"""Resuming a run: what a checkpoint tells of it, and whether the run is still the same one."""

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr.checkpoint.formats import KEY as FORMAT_KEY
from asr.checkpoint.formats import of_today
from asr.checkpoint.load import CHECKPOINT_KEY, read_checkpoint
from asr.checkpoint.saved import newest_intact
from asr.data.position import Position
from asr.errors import InputError
from asr.run.settings import CHOSEN_COMPONENTS, COMPONENTS
from asr.settings.conf import run_defaults

logger = logging.getLogger(__name__)

RUN_KEY = "run"  # of a checkpoint: what `Run.at` gives
# Settings that change nothing that is computed, or no more than its rounding. Of the manifests the content is compared,
# not the place.
FREE = (
    "run_dir",
    "resume",
    "checkpoint",
    "gradient_checkpointing",
    "compile_blocks",
    "graph_memory",
    "doctor",
    "logger",
    "corpus",
    "init.from",  # its weights are compared, and its parts are in the config
    "data.num_workers",
    "data.cache_dir",
    "data.cache_gigabytes",
    "data.retry_seconds",
    "data.timeout_seconds",
    "data.index_dir",
    "data.max_bad_fraction",
    "data.max_dropped_fraction",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.log_every_n_steps",
)
ALLOWED = ("world_size", "trainer", "schedule", "early_stopping", "num_threads")  # in resume.allow


@dataclass(frozen=True)
class Run:
    """What every checkpoint of a run tells of it.

    Args:
        settings: all that its results are a function of, as `run_settings` gives them.
        total_steps: optimizer steps of the whole run, for the schedule.
        id: tells runs apart.
    """

    settings: dict[str, Any]
    total_steps: int
    id: str

    def at(self, position: Position) -> dict[str, Any]:
        """Return what a checkpoint keeps for `find_resume`, as plain types."""
        return {**asdict(self), "position": position.as_dict()}


@dataclass(frozen=True)
class Resume:
    """The checkpoint to resume from, and what it tells of the run.

    Args:
        path: of the checkpoint.
        step: optimizer steps done.
        position: in the training data.
        run: that it is of.
        damaged: newer checkpoints that cannot be read, and why; `put_aside` renames them once the run does resume.
    """

    path: Path
    step: int
    position: Position
    run: Run
    damaged: dict[Path, str]


def begun_or_resumed(
    settings: dict[str, Any], resume: Resume | None, changed: bool, total_steps: Callable[[], int]
) -> Run:
    """Return what every checkpoint tells of a run; one that is resumed stays the same one.

    Args:
        settings: that its results are a function of.
        resume: the checkpoint to resume from; None in a new run.
        changed: whether it is resumed under other settings.
        total_steps: counts its optimizer steps.
    """
    if resume and not changed:
        return Run(settings, resume.run.total_steps, resume.run.id)
    return Run(settings, total_steps(), resume.run.id if resume else secrets.token_hex(8))


def find_resume(checkpoints: Path) -> Resume | None:
    """Find the newest whole checkpoint in a folder; None in a new run.

    Raises:
        InputError: there are only damaged ones, or it is none of this program's.
    """
    checkpoint, damaged = newest_intact(checkpoints)
    if checkpoint is None:
        return None
    content = read_checkpoint(checkpoint.path)
    run = content.get(RUN_KEY)
    if not isinstance(run, dict) or run.keys() != {"settings", "total_steps", "id", "position"}:
        must = "a checkpoint to resume from must say where its run was, as this version of asr writes it"
        raise InputError(f"{checkpoint.path}: {must}; this one does not. Give another run_dir.")
    position = Position.from_dict(run.pop("position"))
    format_number = content.get(CHECKPOINT_KEY, {}).get("config", {}).get(FORMAT_KEY, 0)
    settings = of_today({**run.pop("settings"), FORMAT_KEY: format_number}, checkpoint.path)
    return Resume(checkpoint.path, checkpoint.step, position, Run(settings, **run), damaged)


def run_settings(
    resolved: Mapping[str, Any], manifests: Mapping[str, str], fitted: Mapping[str, bytes], world_size: int
) -> dict[str, Any]:
    """Collect all that a run's results are a function of, as plain types.

    Args:
        resolved: all settings of the run.
        manifests: fingerprints of `train` and `valid`, and of what is mixed in, by the setting that names it.
        fitted: files that tokenizer and features learnt.
        world_size: number of processes.
    """
    learnt = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in fitted.items()}
    return {**resolved, "world_size": world_size, "manifests": dict(manifests), "fitted": learnt}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that a run's results depend on and that has changed to `key: old -> new`.

    The version of asr that began the run may have had other settings of no component: one that it lacked had its
    default, one that this version lacks is ignored. Its components are those of `find_resume`, in today's form.
    """
    return changes_but_for(FREE, _in_the_settings_of_today(old), new)


def changes_but_for(free: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that has changed, is not in `free`, and is not compared by content, to `key: old -> new`."""
    by_content = (*old["manifests"], *new["manifests"])  # and not by the path that a setting of this name holds
    changed = differences(old, new)
    return {key: change for key, change in changed.items() if not _under(key, (*free, *by_content))}


def _in_the_settings_of_today(settings: Mapping[str, Any]) -> dict[str, Any]:
    defaults = run_defaults()
    known = (*defaults, *COMPONENTS, *CHOSEN_COMPONENTS, "corpus", "world_size", "manifests", "fitted")
    today = {**defaults, **{key: value for key, value in settings.items() if key in known}}
    for section, of_section in defaults.items():
        if isinstance(of_section, Mapping) and isinstance(today[section], Mapping):
            given = today[section].items()
            # trainer may hold any argument of Lightning's Trainer
            today[section] = {**of_section, **{k: v for k, v in given if k in of_section or section == "trainer"}}
    return today


def check_allowed(changed: Mapping[str, str], run_dir: Path, allow: Sequence[str]) -> None:
    """Check that a run has the settings with which it was begun, but for those that the user allows to differ.

    Args:
        changed: what `changes` gave.
        run_dir: the run folder.
        allow: `resume.allow`, entries of `ALLOWED` or settings under them.

    Raises:
        InputError: naming each difference.
    """
    for name in allow:
        if not _under(name, ALLOWED):
            raise InputError(f"resume.allow must hold {', '.join(ALLOWED)}, or settings under them; got {name!r}.")
    refused = [change for key, change in changed.items() if not _under(key, allow)]
    if refused:
        could = [key for key in changed if _under(key, ALLOWED)]
        hint = f", or 'resume.allow=[{','.join(could)}]' to resume all the same" if len(could) == len(changed) else ""
        must = f"{run_dir} holds a run with other settings; give another run_dir, or the same settings{hint}"
        raise InputError(f"{must}. Different: {'; '.join(refused)}.")
    if changed:
        logger.warning("resumed under other settings, as resume.allow permits: %s", "; ".join(changed.values()))
        logger.warning("from here on the run is no longer bit for bit the one that was begun")


def differences(old: Any, new: Any, key: str = "") -> dict[str, str]:
    """Map each setting that two resolved configs do not agree in to `key: old -> new`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(name for name in new if name not in old)]
        dotted = {name: f"{key}.{name}" if key else str(name) for name in keys}
        parts = [differences(old.get(name), new.get(name), dotted[name]) for name in keys]
        return {key: change for part in parts for key, change in part.items()}
    return {} if old == new else {key: f"{key}: {old!r} -> {new!r}"}


def _under(key: str, groups: Sequence[str]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in groups)
