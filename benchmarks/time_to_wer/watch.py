"""The clock of a training: CPU seconds of training steps, and the WER on the validation set along the way."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from asr.base.text.word_errors import ErrorCounts, count_errors, total
from asr.core.data.manifest import Utterance

EVALUATIONS = 18  # evaluations per training; the time to a WER is interpolated between them

Transcribe = Callable[[Sequence[Utterance]], list[str]]


class Point(NamedTuple):
    """An evaluation: CPU seconds of training before it, optimizer steps before it, and WER."""

    seconds: float
    step: int
    wer: float


class Watch:
    """Measure a training; start, evaluations and whatever else is `paused` take no time on this clock.

    Args:
        valid: utterances of the evaluations.
    """

    def __init__(self, valid: Sequence[Utterance]) -> None:
        self.points: list[Point] = []
        self.start_seconds = 0.0
        self._valid = valid
        self._begun = self._num_steps = 0.0
        self._done = 0

    @property
    def seconds(self) -> float:
        """CPU seconds of training."""
        return cpu_seconds() - self._begun

    def begin(self, num_steps: int) -> None:
        """Start the clock of a training of `num_steps` optimizer steps."""
        self.start_seconds = self._begun = cpu_seconds()
        self._num_steps = num_steps

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the CPU seconds of the block."""
        start = cpu_seconds()
        yield
        self._begun += cpu_seconds() - start

    def step(self, step: int, transcribe: Transcribe) -> None:
        """Evaluate the model after an optimizer step, if it is time to."""
        if step * EVALUATIONS // self._num_steps > self._done * EVALUATIONS // self._num_steps:
            seconds = self.seconds
            with self.paused():
                wer = total(scored(self._valid, transcribe)).rate
            self.points.append(Point(seconds, step, wer))
            print(f"step {step} of {self._num_steps}, {seconds:.0f} CPU s: WER {wer:.1%}", flush=True)
        self._done = step


def scored(utterances: Sequence[Utterance], transcribe: Transcribe) -> list[ErrorCounts]:
    """Count the word errors of each utterance."""
    texts = transcribe(utterances)
    return [count_errors(utterance.text, text) for utterance, text in zip(utterances, texts, strict=True)]


def time_to(wer: float, points: Sequence[Point]) -> float | None:
    """Return the CPU seconds at which the WER first falls to `wer`, interpolated; None: it does not."""
    before = Point(0.0, 0, 1.0)
    for point in points:
        if point.wer <= wer:
            share = (before.wer - wer) / (before.wer - point.wer) if before.wer > wer else 0.0
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    return sum(os.times()[:4])
