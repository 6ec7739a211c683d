"""What train.log tells that no other file of a run does: the model's size, its data, its time, and its warnings."""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

# As `asr.run.folder.open_run_dir` has lines written, and what `preparation` and `outcome` beside it say in them, and
# `asr.training.progress`.
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) (.*)")
_MODEL = re.compile(r"(\w+) with ([\d,]+) parameters, (\d+) tokens$")
_DATA = re.compile(r"(\d+) training utterances, ([\d.]+) h; (\d+) to validate on$")
_EPOCH = re.compile(r"epoch (\d+) done, step (\d+):")
_WRITTEN = re.compile(r"bundle written to ")
_WITHIN = re.compile(r"epoch (\d+) batch (\d+) of (\d+), step (\d+):")


@dataclass
class TrainingLog:
    """A run as its log tells it; None is what the log does not tell.

    Args:
        encoder: its class.
        parameters: how many.
        tokens: vocab_size.
        train_utterances: in the manifest.
        train_hours: in the manifest, at speed 1.0.
        valid_utterances: in the manifest.
        starts: how often the run was begun or gone on with.
        wall_seconds: of each start, until its last line about a step, or its bundle, added up.
        passes: over the training data; the rest of an epoch that was done a second time does not count twice.
        warnings: warnings and errors in their order, and how often each was given.
    """

    encoder: str | None = None
    parameters: int | None = None
    tokens: int | None = None
    train_utterances: int | None = None
    train_hours: float | None = None
    valid_utterances: int | None = None
    starts: int = 0
    wall_seconds: float | None = None
    passes: float | None = None
    warnings: Counter[str] = field(default_factory=Counter)


def read_log(path: Path) -> TrainingLog:
    """Read train.log, of all the times that the run was started; nothing where there is no file."""
    log = TrainingLog()
    if not path.is_file():
        return log
    started = last = None  # of this start
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if (found := _LINE.fullmatch(line)) is None:  # a message of several lines
            continue
        moment, level, message = datetime.fromisoformat(f"{found[1]}.{found[2]}"), found[3], found[4]
        if (model := _MODEL.match(message)) is not None:
            log.encoder, log.parameters, log.tokens = model[1], int(model[2].replace(",", "")), int(model[3])
            _add_time(log, started, last)
            log.starts, started = log.starts + 1, moment
        if level in ("WARNING", "ERROR", "CRITICAL"):
            log.warnings[message] += 1
        if _read_message(log, message):
            last = moment  # other lines may be the first ones of the next start
    _add_time(log, started, last)
    return log


def _read_message(log: TrainingLog, message: str) -> bool:
    """Take what a line tells; True if the run was in the midst of it."""
    epoch, within = _EPOCH.match(message), _WITHIN.match(message)
    if (data := _DATA.match(message)) is not None:
        log.train_utterances, log.train_hours, log.valid_utterances = int(data[1]), float(data[2]), int(data[3])
    elif epoch is not None:
        log.passes = float(epoch[1])
    elif within is not None:
        log.passes = int(within[1]) - 1 + int(within[2]) / max(1, int(within[3]))
    return epoch is not None or within is not None or _WRITTEN.match(message) is not None


def _add_time(log: TrainingLog, started: datetime | None, last: datetime | None) -> None:
    if started is not None and last is not None:
        seconds = max(0.0, (last - started).total_seconds())  # a clock may have been set back
        log.wall_seconds = (log.wall_seconds or 0.0) + seconds
