"""Summaries of run folders, finished or not: state, settings, results and counts; nothing in a folder is changed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from asr.base.text.numbers import counted
from asr.core.checkpoint.saved import CHECKPOINTS, kept_checkpoints
from asr.core.evaluation.counts import UtteranceCounts, parse_counts
from asr.core.run.events import History, read_history
from asr.core.run.names import CONFIG, COUNTS, EVENTS, LOG, RESULTS
from asr.errors import reason_of

DEPTH = 3  # runs are found at most this number of levels below a given folder
RUN_DIR = "run_dir"  # setting that differs in each run

Content = TypeVar("Content")


@dataclass(frozen=True)
class RunSummary:
    """The content of a run folder; values are empty or None where files are absent or damaged.

    Args:
        name: name of the run.
        state: finished, running, stopped, failed or damaged, with the step or the reason.
        settings: each setting by its key with dots, such as encoder.dim; paths below the run folder are relative to it.
        results: results.json, by test manifest.
        counts: counts.json, by test manifest.
        valid_wer: lowest WER of a validation, a fraction.
        wall_seconds: time of training, without pauses between starts.
        parameters: number of parameters.
    """

    name: str
    state: str
    settings: Mapping[str, Any]
    results: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, UtteranceCounts]
    valid_wer: float | None
    wall_seconds: float | None
    parameters: int | None


def find_runs(folder: Path, on_error: Callable[[OSError], None], depth: int = DEPTH) -> Iterator[Path]:
    """Yield the run folders in a folder, sorted: the folder itself, and folders up to `depth` levels below it.

    Args:
        folder: folder to search; links are followed, and names that begin with a dot are left out.
        on_error: called with the error of each folder that cannot be listed.
        depth: number of levels.
    """
    try:
        names = {entry.name: entry.is_dir() for entry in os.scandir(folder)}
    except OSError as error:
        on_error(error)
        return
    if CONFIG in names and {EVENTS, CHECKPOINTS, RESULTS} & names.keys():
        yield folder
    for name in sorted(name for name, is_folder in names.items() if is_folder and not name.startswith(".")):
        if depth > 0 and name != CHECKPOINTS:
            yield from find_runs(folder / name, on_error, depth - 1)


def summarize(run_dir: Path, name: str) -> RunSummary:
    """Read a run folder. Damaged files are named in the state; nothing is raised."""
    problems: list[str] = []

    def read(file: str, parse: Callable[[Path], Content]) -> Content | None:
        try:
            return parse(run_dir / file) if (run_dir / file).exists() else None
        except OSError as error:
            problems.append(f"{file} ({error.strerror})")
        except (ValueError, yaml.YAMLError, RecursionError):
            problems.append(file)
        return None

    settings: Mapping[str, Any] = read(CONFIG, _settings) or {}
    results: Mapping[str, Mapping[str, Any]] = read(RESULTS, _results) or {}
    counts: Mapping[str, UtteranceCounts] = read(COUNTS, _counts) or {}
    history = read(EVENTS, read_history) or History()
    if history.damaged:
        problems.append(f"{counted(history.damaged, 'line')} of {EVENTS}")
    steps = [checkpoint.step for checkpoint in kept_checkpoints(run_dir / CHECKPOINTS)]
    if read(LOG, _is_locked):
        state = f"running, {_place(history, steps)}"
    else:
        state = _end(history, (run_dir / RESULTS).is_file(), _place(history, steps))
    return RunSummary(
        name,
        f"{state}; damaged: {', '.join(problems)}" if problems else state,
        settings,
        results,
        counts,
        history.best_wer,
        history.wall_seconds,
        int(history.latest.model["parameters"]) if history.latest else None,
    )


def _place(history: History, checkpoint_steps: Sequence[int]) -> str:
    """Describe how far a run is, by its last event or its newest checkpoint."""
    step = history.step if history.step is not None else max(checkpoint_steps, default=None)
    if step is None:
        return "before the first step"
    return f"at step {step:,}" + (f" of {history.total_steps:,}" if history.total_steps else "")


def _end(history: History, has_results: bool, place: str) -> str:
    """Describe how a run ended that no process is training."""
    if history.failure is not None:
        return f"failed {place}: {reason_of(history.failure)}"
    if has_results and (history.is_bundled or history.latest is None):
        return f"finished early, {place}" if history.early_end else "finished"
    return f"stopped in the test, {place}" if history.is_bundled else f"stopped {place}"


def _is_locked(log: Path) -> bool:
    """Return whether a training process has locked its log, see `asr.core.run.folder.open_run_dir`."""
    with log.open("rb") as file:
        try:
            os.lockf(file.fileno(), os.F_TEST, 0)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:  # a file system without locks
            return False
    return False


def _settings(path: Path) -> dict[str, Any]:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path} has no settings")
    run_dir = str(settings.get(RUN_DIR))
    return {key: _relative(value, run_dir) for key, value in _flat(settings) if key != RUN_DIR}


def _flat(settings: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its key; a section without settings yields nothing."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def _relative(value: Any, run_dir: str) -> Any:
    """Replace the run folder in paths below it, so that they are equal in all runs."""
    if isinstance(value, list):
        return [_relative(entry, run_dir) for entry in value]
    if isinstance(value, str) and f"{value}/".startswith(f"{run_dir}/"):
        return RUN_DIR + value[len(run_dir) :]
    return value


def _results(path: Path) -> dict[str, Mapping[str, Any]]:
    results = _object(path)
    if not all(isinstance(result, dict) for result in results.values()):
        raise ValueError(f"{path} has no results")
    for result in results.values():
        for measure in ("wer", "cer"):  # which the results of language models lack
            _check_rate(result.get(measure), result.get(f"{measure}_interval"))
    return results


def _check_rate(rate: object, interval: object) -> None:
    match rate, interval:
        case (int() | float() | None, None | [int() | float(), int() | float()]):
            return
    raise ValueError(f"{rate!r} and {interval!r} are not an error rate and its interval")


def _counts(path: Path) -> dict[str, UtteranceCounts]:
    return {name: parse_counts(entry) for name, entry in _object(path).items()}


def _object(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not an object")
    return content
