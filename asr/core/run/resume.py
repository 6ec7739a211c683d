"""Resuming a run: the record of the run in a checkpoint, and the comparison of settings."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr.base.settings.conf import run_defaults
from asr.core.checkpoint.formats import KEY as FORMAT_KEY
from asr.core.checkpoint.formats import of_today
from asr.core.checkpoint.load import CHECKPOINT_KEY, read_checkpoint
from asr.core.checkpoint.saved import newest_intact
from asr.core.data.position import Position, start_of_epoch
from asr.core.run.settings import command_of, sections_of
from asr.errors import InputError, shown

logger = logging.getLogger(__name__)

MAX_NAMED = 3  # changed settings in a message
RUN_KEY = "run"  # key under which a checkpoint contains the dict from `Record.at`
# Settings of any objective that do not change results, except perhaps their rounding. For manifests and texts, resume
# compares contents, not paths.
FREE = (
    "run_dir",
    "resume",
    "checkpoint",
    "gradient_checkpointing",
    "compile_blocks",
    "doctor",
    "logger",
    "metric",
    "plugins",  # their components are compared
    "corpus",
    "recognizer",
    "text.train",
    "text.valid",
    "text.test",
    "init.share",
    "init.from",  # resume compares the initial model's weights; the config contains that model's components
    "data.num_workers",
    "data.cache_dir",
    "data.cache_gigabytes",
    "data.retry_seconds",
    "data.timeout_seconds",
    "data.index_dir",
    "data.step_seconds",  # batches and accumulation, which follow from it, are compared
    "data.max_bad_fraction",
    "data.max_dropped_fraction",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.log_every_n_steps",
)
OLDER = {"train": "recognition", "train_lm": "language_model"}  # objectives of runs that began without this section
ROUNDED = "lengths_per_doubling"  # setting of earlier versions, in `data`: if not None, they planned other batches
# Valid entries of resume.allow.
ALLOWED = ("world_size", "trainer", "schedule", "early_stopping", "callback", "num_threads")


@dataclass(frozen=True)
class RunRecord:
    """The record of a run in each of its checkpoints.

    Args:
        settings: everything that determines the results, from `run_settings`.
        total_steps: optimizer steps of the whole run, for the schedule.
        id: random id, unique to the run.
    """

    settings: dict[str, Any]
    total_steps: int
    id: str

    def at(self, position: Position) -> dict[str, Any]:
        """Return the record and a position as plain types, for `find_resume`."""
        return {**asdict(self), "position": position.as_dict()}


@dataclass(frozen=True)
class Resume:
    """The checkpoint to resume from, and its record of the run.

    Args:
        path: path of the checkpoint.
        step: completed optimizer steps.
        position: position in the training data from which the run continues.
        run: the run to which the checkpoint belongs.
        damaged: newer checkpoints that cannot be read, with the reasons; `put_aside` renames them when the run resumes.
    """

    path: Path
    step: int
    position: Position
    run: RunRecord
    damaged: dict[Path, str]


def find_resume(checkpoints: Path) -> Resume | None:
    """Find the newest intact checkpoint in a folder; None in a new run."""
    checkpoint, damaged = newest_intact(checkpoints)
    if checkpoint is None:
        return None
    content = read_checkpoint(checkpoint.path)
    run = content.get(RUN_KEY)
    if not isinstance(run, dict) or run.keys() != {"settings", "total_steps", "id", "position"}:
        must = "a checkpoint to resume from must contain its run's position in the format of this version of asr"
        raise InputError(f"{checkpoint.path}: {must}; it does not. Give another run_dir.")
    position = Position.from_dict(run.pop("position"))
    format_number = content.get(CHECKPOINT_KEY, {}).get("config", {}).get(FORMAT_KEY, 0)
    settings = of_today({**run.pop("settings"), FORMAT_KEY: format_number}, checkpoint.path)
    return Resume(
        checkpoint.path, checkpoint.step, _in_plans_of_today(position, settings), RunRecord(settings, **run), damaged
    )


def _in_plans_of_today(position: Position, settings: Mapping[str, Any]) -> Position:
    """Return the start of the epoch if an earlier version planned it with rounded lengths; else the position."""
    rounded = settings.get("data", {}).get(ROUNDED)
    if rounded is None or not any(share.batches for share in position.shares):
        return position
    began = f"a version that had data.{ROUNDED}={rounded}, which changes the batches, began the run"
    logger.warning("%s: epoch %d begins again", began, position.epoch + 1)
    return start_of_epoch(position.epoch, position.world_size)


def run_settings(
    resolved: Mapping[str, Any], manifests: Mapping[str, str], fitted: Mapping[str, bytes], world_size: int
) -> dict[str, Any]:
    """Return everything that determines a run's results, as plain types.

    Args:
        resolved: all settings of the run.
        manifests: fingerprints of `train`, `valid` and recordings that are mixed in, by the name of the setting.
        fitted: files of the fitted tokenizer and features.
        world_size: number of processes.
    """
    learnt = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in fitted.items()}
    return {**resolved, "world_size": world_size, "manifests": dict(manifests), "fitted": learnt}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Map each changed setting that affects results to `key: old -> new`.

    An older version of asr may have started the run. A setting that the older version lacks is taken to have its
    default value; a setting that this version lacks is ignored. This does not apply to components.
    """
    by_content = (*old["manifests"], *new["manifests"])  # settings whose files are compared instead of their paths
    changed = differences(_in_the_settings_of_today(old, command_of(new)), new)
    return {key: change for key, change in changed.items() if not _under(key, (*FREE, *by_content))}


def _in_the_settings_of_today(settings: Mapping[str, Any], command: str) -> dict[str, Any]:
    older = {"objective": {"name": OLDER[command]}}
    components = [name for names in sections_of({**older, **settings}) for name in names]
    defaults = run_defaults(command)
    if "normalizer" not in components:
        defaults.pop("normalizer", None)
    known = (*defaults, *components, "corpus", "world_size", "manifests", "fitted")
    today = {**older, **defaults, **{key: value for key, value in settings.items() if key in known}}
    for section, of_section in defaults.items():
        if isinstance(of_section, Mapping) and isinstance(today[section], Mapping):
            given = today[section].items()
            # trainer may contain any argument of Lightning's Trainer
            today[section] = {**of_section, **{k: v for k, v in given if k in of_section or section == "trainer"}}
    return today


def check_allowed(changed: Mapping[str, str], run_dir: Path, allow: Sequence[str]) -> None:
    """Check that the settings of a resumed run have not changed, except those that the user allows to change.

    Args:
        changed: from `changes`.
        run_dir: the run folder.
        allow: `resume.allow`: entries of `ALLOWED` or settings under them.
    """
    for name in allow:
        if not _under(name, ALLOWED):
            raise InputError(f"resume.allow must list {', '.join(ALLOWED)} or settings under them; got {name!r}.")
    refused = [change for key, change in changed.items() if not _under(key, allow)]
    if refused:
        could = [key for key in changed if _under(key, ALLOWED)]
        hint = f", or 'resume.allow=[{','.join(could)}]' to accept them" if len(could) == len(changed) else ""
        must = f"{run_dir} contains a run with other settings; give another run_dir, or the old settings{hint}"
        named = "; ".join(refused[:MAX_NAMED])
        more = f"; and {len(refused) - MAX_NAMED} more" if len(refused) > MAX_NAMED else ""
        raise InputError(f"{must}. Changed: {named}{more}.")
    if changed:
        logger.warning("resumed with changed settings, as resume.allow permits: %s", "; ".join(changed.values()))
        logger.warning("from now on, results are no longer bit-identical to those of a run with the original settings")


def differences(old: Any, new: Any, key: str = "") -> dict[str, str]:
    """Map each setting that differs between two resolved configs to `key: old -> new`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(name for name in new if name not in old)]
        dotted = {name: f"{key}.{name}" if key else str(name) for name in keys}
        parts = [differences(old.get(name), new.get(name), dotted[name]) for name in keys]
        return {key: change for part in parts for key, change in part.items()}
    return {} if old == new else {key: f"{key}: {shown(old)} -> {shown(new)}"}


def _under(key: str, groups: Sequence[str]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in groups)
