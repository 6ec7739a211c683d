"""events.jsonl: starts, progress, warnings and end of a run.

Validations are also in metrics.csv; events.jsonl contains them for programs that monitor a run.

Each line is a JSON object with `time` (seconds since 1970), `event` (a key of EVENTS) and the fields of the event's
class. The first process of a run appends lines and never removes lines, even if the run is killed and resumed.
"""

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

from asr.core.run import names


@dataclass(frozen=True, slots=True)
class Started:
    """A training starts or resumes.

    Args:
        step: completed optimizer steps; 0 in a new run.
        net: class of the trained network.
        model: sizes of the model by unit: `parameters`, `tokens`.
        train: sizes of the training set by unit: `utterances` and `hours` (at speed 1.0), or `sentences` and `words`.
        valid: sizes of the validation set by unit; {} without a validation.
        command, code, libraries, machine: fields of `Provenance`.
        shared_texts: number of test utterances with a training text; 0 for a corpus that is too large to compare.
    """

    step: int
    net: str
    model: dict[str, float]
    train: dict[str, float]
    valid: dict[str, float]
    command: str
    code: str
    libraries: str
    machine: str
    shared_texts: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a run, written at intervals.

    Args:
        step: completed optimizer steps.
        epoch: number of the epoch, counted from 1.
        batch: completed batches of the epoch.
        num_batches: number of batches of the epoch.
        total_steps: planned number of optimizer steps of the whole run; None: an earlier version wrote the event.
    """

    step: int
    epoch: int
    batch: int
    num_batches: int
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Validated:
    """The weights were validated.

    Args:
        step: completed optimizer steps; 0: the initial model.
        loss: validation loss per unit, such as a token. None: the validation set has no units.
        measure: metric of the objective, such as `wer`.
        score: its value; a WER is a fraction. None: it has no finite value, as for references without words.
    """

    step: int
    loss: float | None
    measure: str
    score: float | None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning or an error was logged."""

    message: str


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """The training ends before its planned end.

    Args:
        message: step and reason, as in the run's log.
    """

    message: str


@dataclass(frozen=True, slots=True)
class Bundled:
    """The training is complete, and the bundle is written."""


Event = Started | Progress | Validated | Warned | EndedEarly | Bundled
EVENTS: dict[str, Callable[..., Event]] = {
    "start": Started,
    "progress": Progress,
    "validation": Validated,
    "warning": Warned,
    "early_end": EndedEarly,
    "bundle": Bundled,
}
FAILURE = "error: "  # begins the message of the error that ends a run
KINDS = {kind: name for name, kind in EVENTS.items()}


class EventsFile:
    """Writes the events of a run.

    Args:
        run_dir: the run folder; the file is created if necessary.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / names.EVENTS

    def append(self, event: Event) -> None:
        """Append a line; if a killed process left an incomplete last line, end it with a line break first."""
        line = json.dumps({"time": round(time.time(), 3), "event": KINDS[type(event)], **asdict(event)}) + "\n"
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())


class WarningEvents(logging.Handler):
    """A log handler that writes warnings and errors as events."""

    def __init__(self, events: EventsFile) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record as an event."""
        try:
            self._events.append(Warned(record.getMessage()))
        except Exception:  # as in logging's own handlers: a failed write must not stop the training
            self.handleError(record)


@dataclass
class History:
    """A summary of a run's events; a value is None if no event determines it.

    Args:
        first: the first start.
        latest: the last start.
        began: time of the first start, in seconds since 1970.
        starts: number of starts and resumes.
        wall_seconds: time from each start to its last `Progress` or `Bundled` event, summed over the starts.
        step: completed optimizer steps at the last `Progress` event.
        total_steps: planned number of optimizer steps, at the last `Progress` event.
        best_wer: lowest validation WER after the first step, a fraction.
        passes: number of passes over the training data; batches that are repeated after a resume count once.
        warnings: number of occurrences of each warning, in order of first occurrence.
        early_end: why the latest start ended before the planned end of the run; None if it did not.
        failure: error that ended the latest start; None if no error was logged.
        is_bundled: whether the latest start has written the bundle.
        damaged: number of unreadable lines.
    """

    first: Started | None = None
    latest: Started | None = None
    began: float | None = None
    starts: int = 0
    wall_seconds: float | None = None
    step: int | None = None
    total_steps: int | None = None
    best_wer: float | None = None
    passes: float | None = None
    warnings: Counter[str] = field(default_factory=Counter)
    early_end: str | None = None
    failure: str | None = None
    is_bundled: bool = False
    damaged: int = 0


def read_history(path: Path) -> History:
    """Read the events of all starts of a run; without a file, the history is empty."""
    history = History()
    before = math.inf  # time of the previous event of the current start
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            moment, event = _read(line)
        except (ValueError, TypeError):  # the process was killed while it wrote the line, or the line is damaged
            history.damaged += 1
            continue
        match event:
            case Started():
                history.first, history.latest = history.first or event, event
                history.began = moment if history.began is None else history.began
                history.starts += 1
                history.early_end, history.failure, history.is_bundled = None, None, False
                before = moment
            case Progress():
                history.step, history.total_steps = event.step, event.total_steps
                history.passes = event.epoch - 1 + event.batch / max(1, event.num_batches)
            case Validated() if event.step and event.measure == "wer" and event.score is not None:
                history.best_wer = min(event.score, math.inf if history.best_wer is None else history.best_wer)
            case Warned():
                history.warnings[event.message] += 1
                if event.message.startswith(FAILURE):
                    history.failure = event.message.removeprefix(FAILURE)
            case EndedEarly():
                history.early_end = event.message
            case Bundled():
                history.is_bundled = True
        if isinstance(event, Progress | Bundled):  # a Warned event may already belong to the next start
            history.wall_seconds = (history.wall_seconds or 0.0) + max(0.0, moment - before)  # a clock may be set back
            before = moment
    return history


def _read(line: bytes) -> tuple[float, Event]:
    """Parse a line.

    Raises:
        ValueError, TypeError: the line is not an event.
    """
    match json.loads(line):
        case {"time": int() | float() as moment, "event": str(name), **values} if (
            math.isfinite(moment) and name in EVENTS
        ):
            event = EVENTS[name](**values)  # type: ignore[arg-type]  # keys of JSON are str
        case other:
            raise ValueError(f"{other!r} is not an event")
    for entry in fields(event):
        kind: Any = (int, float) if entry.type is float else entry.type
        if get_origin(kind) is dict:
            kind = dict
        if not isinstance(value := getattr(event, entry.name), kind):
            raise TypeError(f"{entry.name} must be {kind}; got {value!r}")
    return moment, event
