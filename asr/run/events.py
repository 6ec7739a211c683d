"""events.jsonl: what no other file of a run tells: its starts, how far each came, its warnings, its end.

Its validations, which metrics.csv tells, too, are here for those who watch a run.

Each line is JSON, an object with `time` (seconds since 1970), `event` (a key of EVENTS), and the fields of its class.
Lines are only ever added, by the first of a run's processes: what a run has told stays when it is killed and resumed.
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
from typing import Any

from asr.run import names


@dataclass(frozen=True, slots=True)
class Started:
    """A model was made, and is about to be trained.

    Args:
        step: optimizer steps done before; 0 in a new run.
        encoder: its class.
        parameters: how many.
        tokens: vocab_size.
        train_utterances: in the manifest.
        train_hours: in the manifest, at speed 1.0.
        valid_utterances: in the manifest.
        command: see `Provenance`, as are the next three.
        code: see there.
        libraries: see there.
        machine: see there.
    """

    step: int
    encoder: str
    parameters: int
    tokens: int
    train_utterances: int
    train_hours: float
    valid_utterances: int
    command: str = ""  # these four are absent from older runs
    code: str = ""
    libraries: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class TextStarted:
    """A language model was made, and is about to be trained.

    Args:
        step: optimizer steps done before; 0 in a new run.
        net: its class.
        parameters: how many.
        tokens: vocab_size.
        train_sentences: that are trained on.
        train_words: of these sentences.
        valid_sentences: that are validated on.
        command: see `Provenance`, as are the next three.
        code: see there.
        libraries: see there.
        machine: see there.
    """

    step: int
    net: str
    parameters: int
    tokens: int
    train_sentences: int
    train_words: int
    valid_sentences: int
    command: str
    code: str
    libraries: str
    machine: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The run is alive.

    Args:
        step: optimizer steps done.
        epoch: from 1.
        batch: batches of the epoch that are done.
        num_batches: of the epoch.
    """

    step: int
    epoch: int
    batch: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class Validated:
    """The weights were validated.

    Args:
        step: optimizer steps done; 0 for the model that the run starts from.
        loss: per token.
        wer: a fraction; None where the references have no word, and of a language model.
        perplexity: of a language model, per word.
    """

    step: int
    loss: float
    wer: float | None
    perplexity: float | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning or an error was logged."""

    message: str


@dataclass(frozen=True, slots=True)
class Bundled:
    """The run is trained, and its bundle written."""


Start = Started | TextStarted
Event = Start | Progress | Validated | Warned | Bundled
EVENTS: dict[str, Callable[..., Event]] = {
    "start": Started,
    "text_start": TextStarted,
    "progress": Progress,
    "validation": Validated,
    "warning": Warned,
    "bundle": Bundled,
}
KINDS = {kind: name for name, kind in EVENTS.items()}


class EventsFile:
    """Where a run tells its events.

    Args:
        run_dir: the run folder; the file need not be there yet.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / names.EVENTS

    def append(self, event: Event) -> None:
        """Add a line; what a kill has left of the last one ends first."""
        line = json.dumps({"time": round(time.time(), 3), "event": KINDS[type(event)], **asdict(event)}) + "\n"
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode())


class WarningEvents(logging.Handler):
    """A handler of log records that tells warnings and errors as events."""

    def __init__(self, events: EventsFile) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Logging's hook."""
        try:
            self._events.append(Warned(record.getMessage()))
        except Exception:  # as every handler does: a warning that cannot be kept ends no training
            self.handleError(record)


@dataclass
class History:
    """What the events of a run add up to; None is what they do not tell.

    Args:
        first: the first start that is told of.
        latest: the last start.
        began: time of the first start, in seconds since 1970.
        starts: how often the run was begun or resumed.
        wall_seconds: of each start, until its last progress or its bundle, added up.
        passes: over the training data; the rest of an epoch that was done a second time does not count twice.
        warnings: in their order, and how often each was given.
        damaged: lines that could not be read.
    """

    first: Start | None = None
    latest: Start | None = None
    began: float | None = None
    starts: int = 0
    wall_seconds: float | None = None
    passes: float | None = None
    warnings: Counter[str] = field(default_factory=Counter)
    damaged: int = 0


def read_history(path: Path) -> History:
    """Read the events of all the times that a run was started; nothing where there is no file."""
    history = History()
    before = math.inf  # the time of the event before, within this start
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            moment, event = _read(line)
        except (ValueError, TypeError):  # cut short by a kill, or whatever a disk has made of it
            history.damaged += 1
            continue
        match event:
            case Started() | TextStarted():
                history.first, history.latest = history.first or event, event
                history.began = moment if history.began is None else history.began
                history.starts += 1
                before = moment
            case Progress():
                history.passes = event.epoch - 1 + event.batch / max(1, event.num_batches)
            case Warned():
                history.warnings[event.message] += 1
        if isinstance(event, Progress | Bundled):  # a warning may be of the next start, before its model is made
            history.wall_seconds = (history.wall_seconds or 0.0) + max(0.0, moment - before)  # clocks are set back
            before = moment
    return history


def _read(line: bytes) -> tuple[float, Event]:
    """Read a line.

    Raises:
        ValueError, TypeError: it is no event.
    """
    match json.loads(line):
        case {"time": int() | float() as moment, "event": str(name), **values} if (
            math.isfinite(moment) and name in EVENTS
        ):
            event = EVENTS[name](**values)  # type: ignore[arg-type]  # keys of JSON are str
        case other:
            raise ValueError(f"{other!r} is no event")
    for entry in fields(event):
        kind: Any = (int, float) if entry.type is float else entry.type
        if not isinstance(value := getattr(event, entry.name), kind):
            raise TypeError(f"{entry.name} must be {kind}; got {value!r}")
    return moment, event
