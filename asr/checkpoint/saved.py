"""The checkpoints of a run folder: their names say all that is needed to choose among them."""

import logging
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.errors import InputError

DAMAGED = ".damaged"  # is added to the name of a checkpoint that cannot be read
NEWEST = 2  # checkpoints kept to resume from: the newest, and the one before it, should it be damaged
SELECTIONS = ("best", "last", "average_best", "average_last")  # of checkpoints, for a bundle
SIMILAR = 4.0  # times the best score: what is worse had hardly begun to learn, and is not averaged
WER, PERPLEXITY = "wer", "perplexity"  # what validations measure: of recognisers, of language models; less is better

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint in a run folder.

    Args:
        path: of the file, `step=120.ckpt` or `step=120-wer=0.0397.ckpt`.
        step: optimizer steps done.
        score: of the validation at that step: WER, a fraction, or perplexity; None where there was none.
    """

    path: Path
    step: int
    score: float | None


def checkpoint_name(step: int, score: float | None, measure: str = WER) -> str:
    """Name the file of a checkpoint; `measure` is what the score is, WER or PERPLEXITY."""
    return f"step={step}.ckpt" if score is None else f"step={step}-{measure}={score:.4f}.ckpt"


def kept_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """List the checkpoints in a folder, oldest first."""
    checkpoints = []
    for path in folder.glob("step=*.ckpt"):
        if match := re.fullmatch(rf"step=(\d+)(?:-(?:{WER}|{PERPLEXITY})=(\d+\.\d+))?", path.stem):
            checkpoints.append(SavedCheckpoint(path, int(match[1]), None if match[2] is None else float(match[2])))
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.path.name))


def intact_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """List the checkpoints of a folder that can be read, oldest first; a warning names each damaged one."""
    intact = []
    for checkpoint in kept_checkpoints(folder):
        if (reason := damage(checkpoint.path)) is None:
            intact.append(checkpoint)
        else:
            logger.warning("%s is damaged (%s), and left out of the bundle", checkpoint.path, reason)
    return intact


def newest_intact(folder: Path) -> tuple[SavedCheckpoint | None, dict[Path, str]]:
    """Find the checkpoint to resume from, the newest that can be read, and the damaged ones that are newer.

    Returns:
        The checkpoint, None where the folder has none; and the reason why each newer one cannot be read.

    Raises:
        InputError: there are checkpoints, and all are damaged.
    """
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(kept_checkpoints(folder)):
        reason = damage(checkpoint.path)
        if reason is None:
            return checkpoint, damaged
        damaged[checkpoint.path] = reason
    if damaged:
        what = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
        raise InputError(f"{folder} must hold a whole checkpoint to resume from; {what}. Give another run_dir.")
    return None, {}


def put_aside(damaged: Mapping[Path, str]) -> None:
    """Rename damaged checkpoints, so that the run can write new ones of these names; a warning names each.

    Args:
        damaged: the reason why each cannot be read, as `newest_intact` returns it.
    """
    for path, reason in damaged.items():
        path.rename(path.with_name(path.name + DAMAGED))
        logger.warning("%s is damaged (%s): renamed to *%s", path, reason, DAMAGED)


def damage(path: Path) -> str | None:
    """Tell what is wrong with a checkpoint file; None where it is whole. Reads all of it, and runs nothing of it."""
    try:
        with zipfile.ZipFile(path) as file:  # torch does not check the sums that it writes
            broken = file.testzip()
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        return str(error) or type(error).__name__
    return f"{broken} in it has another checksum" if broken else None


def select(selection: str, checkpoints: Sequence[SavedCheckpoint], keep: int) -> list[SavedCheckpoint]:
    """Choose the checkpoints that a bundle is made of.

    Args:
        selection: one of `SELECTIONS`.
        checkpoints: of the run, oldest first.
        keep: how many are averaged at most.

    Raises:
        InputError: there is none.
    """
    if not checkpoints:
        raise InputError("a run must train at least one step, and leave a checkpoint that is whole; got none.")
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    if selection == "last" or not validated:
        return [checkpoints[-1]]
    if selection == "average_last":
        return validated[-keep:]
    best = by_score(validated)[:keep]
    if selection == "best":
        return best[:1]
    return [checkpoint for checkpoint in best if _score(checkpoint) <= SIMILAR * _score(best[0])]


def by_score(checkpoints: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Sort the validated ones, best first; of equally good ones, the older first."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    return sorted(validated, key=lambda checkpoint: (_score(checkpoint), checkpoint.step))


def superfluous(selection: str, checkpoints: Sequence[SavedCheckpoint], keep: int) -> list[SavedCheckpoint]:
    """List what needs to be kept neither to resume from nor for the bundle."""
    validated = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
    wanted = validated[-keep:] if selection == "average_last" else by_score(validated)[:keep]
    return [checkpoint for checkpoint in checkpoints[:-NEWEST] if checkpoint not in wanted]


def _score(checkpoint: SavedCheckpoint) -> float:
    assert checkpoint.score is not None
    return checkpoint.score
