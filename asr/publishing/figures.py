"""Measurements of programs: size, speed, WER."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch

from asr.data.manifest import Utterance
from asr.evaluation.result import evaluate
from asr.onnx.names import NET_INPUTS
from asr.onnx.session import run, session
from asr.publishing.program import Net
from asr.recognition.inference import INFERENCE
from asr.recognition.recognizer import Recognizer
from asr.text.numbers import interval, rate

SECONDS = 10  # length of the timed recording
TURNS = 5
TITLES = ("programs", "MB", "seconds of audio per second", "WER %", "95 % interval")


class Figures(NamedTuple):
    """Measurements of a model's programs.

    Args:
        num_bytes: size of the programs whose input is features.
        speed: seconds of audio processed per second, for a batch of 10 s on one thread.
        wer: word error rate; None: not measured.
        wer_interval: 95 % interval of the WER; None: there is none.
    """

    num_bytes: int
    speed: float
    wer: float | None
    wer_interval: Sequence[float] | None

    def row(self, name: str) -> tuple[str, ...]:
        """Return a row of a table with `TITLES`."""
        wer = "not measured" if self.wer is None else rate(self.wer)
        return name, f"{self.num_bytes / 1e6:.1f}", f"{self.speed:.0f}", wer, interval(self.wer_interval)


def speeds(recognizer: Recognizer, programs: dict[str, bytes], net: Net) -> dict[str, float]:
    """Time programs alternately, so that other load on the machine affects all programs equally.

    Args:
        recognizer: recogniser whose features are the input.
        programs: programs by name.
        net: network that was exported as the programs.
    """
    features = recognizer.model.features
    given = features(0.1 * torch.randn(SECONDS * features.sample_rate))[None]
    lengths = torch.tensor([given.shape[1]])
    opened = {name: session(program, NET_INPUTS, net.outputs, num_threads=1) for name, program in programs.items()}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(TURNS + 1):
        for name, program in opened.items():
            start = time.perf_counter()
            run(program, given, lengths)
            if turn:  # the first turn is a warm-up
                taken[name].append(time.perf_counter() - start)
    return {name: SECONDS / median(seconds) for name, seconds in taken.items()}


def measured(
    recognizer: Recognizer,
    num_bytes: int,
    speed: float,
    manifest: str,
    utterances: Sequence[Utterance],
    on_progress: Callable[[float], None],
) -> Figures:
    """Measure a model's programs.

    Args:
        recognizer: recogniser that runs the programs.
        num_bytes: size of the programs.
        speed: as in `Figures`.
        manifest: name of the manifest.
        utterances: utterances of the manifest; without utterances, the WER is not measured.
        on_progress: called with the seconds of audio recognised since the last call.
    """
    if not utterances:
        return Figures(num_bytes, speed, None, None)
    row = evaluate(recognizer, manifest, list(utterances), INFERENCE, on_progress).as_dict()
    return Figures(num_bytes, speed, row["wer"], row["wer_interval"])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (TITLES, ["---"] * len(TITLES), *rows))
