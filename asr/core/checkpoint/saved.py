"""The checkpoints of a run folder, which are selected by the step and the score in their names."""

import logging
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.errors import InputError

CHECKPOINTS = "checkpoints"  # name of the checkpoints' folder in a run folder
MERGED = "merged"  # name of the folder in a run folder of asr.finetune that contains the adapter merged into its base
DAMAGED = ".damaged"  # suffix that is added to the names of damaged checkpoints
NEWEST = 2  # number of newest checkpoints from which a run can resume; the second is used if the first is damaged
SELECTIONS = ("best", "last", "average_best", "average_last")  # ways to select the checkpoints of a bundle
SIMILAR = 4.0  # checkpoints whose score is more than this multiple of the best score are not averaged
# Nor, with average_last, are those whose score is more than this multiple of the last one's, because in a short run the
# weights still change much in the last epoch: docs/guide/train.md has measurements.
SIMILAR_TO_LAST = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint in a run folder.

    Args:
        path: path of the file, named like `step=120.ckpt` or `step=120-wer=0.0397.ckpt`.
        step: number of completed optimizer steps.
        score: result of the validation at this step, in the objective's measure, such as the WER as a fraction; None:
            there was no validation.
    """

    path: Path
    step: int
    score: float | None


def checkpoint_name(step: int, score: float | None, measure: str = "wer") -> str:
    """Return the file name of a checkpoint; `measure` is the name of the score's metric."""
    if score is None:
        return f"step={step}.ckpt"
    return f"step={step}-{measure}={score:.4f}.ckpt" if score < 1e9 else f"step={step}-{measure}={score:.4e}.ckpt"


def kept_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """List the checkpoints in a folder, oldest first."""
    checkpoints = []
    for path in folder.glob("step=*.ckpt"):
        if match := re.fullmatch(r"step=(\d+)(?:-[a-z_]+=(\d+\.\d+(?:e\+\d+)?))?", path.stem):
            checkpoints.append(SavedCheckpoint(path, int(match[1]), None if match[2] is None else float(match[2])))
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.path.name))


def intact_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """List the intact checkpoints of a folder, oldest first; log a warning for each damaged one."""
    intact = []
    for checkpoint in kept_checkpoints(folder):
        if (reason := damage(checkpoint.path)) is None:
            intact.append(checkpoint)
        else:
            logger.warning("%s is damaged (%s) and left out of the bundle", checkpoint.path, reason)
    return intact


def newest_intact(folder: Path) -> tuple[SavedCheckpoint | None, dict[Path, str]]:
    """Find the newest intact checkpoint, from which a run resumes, and the damaged checkpoints that are newer.

    Returns:
        The checkpoint (None: the folder has no checkpoints), and a description of the damage of each newer checkpoint,
        by its path.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(kept_checkpoints(folder)):
        reason = damage(checkpoint.path)
        if reason is None:
            return checkpoint, damaged
        damaged[checkpoint.path] = reason
    if damaged:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise InputError(f"{folder} must have an intact checkpoint to resume from; {reasons}. Give another run_dir.")
    return None, {}


def put_aside(damaged: Mapping[Path, str]) -> None:
    """Rename damaged checkpoints, so that the run can write checkpoints with these names; log a warning for each.

    Args:
        damaged: descriptions of the damage, by the checkpoint's path, from `newest_intact`.
    """
    for path, reason in damaged.items():
        path.rename(path.with_name(path.name + DAMAGED))
        logger.warning("%s is damaged (%s): renamed to *%s", path, reason, DAMAGED)


def damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint, None if it is intact; the whole file is read, and no code in it is run."""
    try:
        with zipfile.ZipFile(path) as file:  # verifies the checksums, which torch writes but does not verify
            broken = file.testzip()
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return f"the checksum of {broken} is wrong" if broken else None


def select(selection: str, checkpoints: Sequence[SavedCheckpoint], keep: int) -> list[SavedCheckpoint]:
    """Select the checkpoints whose weights a bundle contains.

    Args:
        selection: one of `SELECTIONS`.
        checkpoints: checkpoints of the run, oldest first.
        keep: maximum number of checkpoints to average.
    """
    if not checkpoints:
        raise InputError("a run must have an intact checkpoint after at least one step; got none.")
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    if selection == "last" or not validated:
        return [checkpoints[-1]]
    if selection == "average_last":
        last = validated[-1]
        return [each for each in validated[-keep:] if each is last or _score(each) <= SIMILAR_TO_LAST * _score(last)]
    best = by_score(validated)[:keep]
    if selection == "best":
        return best[:1]
    return [checkpoint for checkpoint in best if _score(checkpoint) <= SIMILAR * _score(best[0])]


def by_score(checkpoints: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Sort the validated checkpoints, best first; older checkpoints come before newer ones of equal score."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    return sorted(validated, key=lambda checkpoint: (_score(checkpoint), checkpoint.step))


def superfluous(selection: str, checkpoints: Sequence[SavedCheckpoint], keep: int) -> list[SavedCheckpoint]:
    """Return the checkpoints that are needed neither to resume nor for the bundle."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    wanted = validated[-keep:] if selection == "average_last" else by_score(validated)[:keep]
    return [checkpoint for checkpoint in checkpoints[:-NEWEST] if checkpoint not in wanted]


def _score(checkpoint: SavedCheckpoint) -> float:
    assert checkpoint.score is not None
    return checkpoint.score
