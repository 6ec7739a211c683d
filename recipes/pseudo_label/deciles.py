"""Compare the confidence of automatic texts with their errors, on transcribed speech: a report, not a filter.

    python -m asr.evaluate MODEL transcribed.jsonl --output-dir out
    python -m recipes.pseudo_label.deciles out/transcribed.utterances.jsonl --dev dev/dev.utterances.jsonl

This sorts the utterances by confidence and prints the word error rate of each tenth. --page plots this rate against the
expected rate (1 minus the mean confidence), with 95 % intervals.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.page import escape, page, visible
from asr.base.system.files import write_whole_text
from asr.base.text.numbers import percent
from asr.base.text.word_errors import total
from asr.core.evaluation.bootstrap import intervals
from asr.core.evaluation.utterances import read_scored
from asr.core.recognition.confidence import UNCALIBRATED
from asr.errors import InputError
from recipes.command import AddOption, run_recipe
from recipes.pseudo_label.texts import fitted_calibration, read_texts

NUM_BINS = 10


class Bin(NamedTuple):
    """Utterances of similar confidence.

    Args:
        lowest: lowest confidence.
        highest: highest confidence.
        mean: mean confidence.
        utterances: number of utterances.
        words: number of words in their references.
        wer: word error rate, as a fraction.
        interval: 95 % interval of `wer` over the utterances; None: too few utterances, or no errors.
    """

    lowest: float
    highest: float
    mean: float
    utterances: int
    words: int
    wer: float
    interval: tuple[float, float] | None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.pseudo_label.deciles", __doc__, _add_options, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    devs = options.dev or [None] * len(options.files)
    if len(devs) != len(options.files):
        raise InputError(f"--dev must name one file for each JSONL; got {len(devs)} for {len(options.files)}.")
    results = {path: deciles(path, dev) for path, dev in zip(options.files, devs, strict=True)}
    for path, bins in results.items():
        print(f"{path}\nconfidence          utterances     words     WER")
        for part in bins:
            shown = f"{part.lowest:.3f} to {part.highest:.3f}"
            print(f"{shown:<18}{part.utterances:>12,}{part.words:>10,}{100 * part.wer:>6.1f} %")
    if options.page is not None:
        write_whole_text(options.page, _page(results))


def _page(results: dict[str, list[Bin]]) -> str:
    title = "Confidence and errors of automatic texts"
    curves = [
        Series(
            visible(path),
            [(1 - part.mean, part.wer) for part in bins],
            intervals=[part.interval for part in bins],
            dots=True,
        )
        for path, bins in results.items()
    ]
    note = "Each dot is a tenth of the utterances, with its 95 % interval; above the diagonal, confidence is too high"
    expected, actual = Axis("errors expected: 1 - mean confidence", percent), Axis("word error rate", percent)
    chart = line_chart("Tenths of the utterances by confidence", expected, actual, curves, note, diagonal=True)
    return page(title, f'<main><h1>{escape(title)}</h1><div class="charts">{chart}</div></main>')


def deciles(path: str, dev: str | None) -> list[Bin]:
    """Divide scored utterances into tenths by their confidence, from the most to the least confident.

    Args:
        path: NAME.utterances.jsonl of `asr.evaluate`.
        dev: output for a dev set, to calibrate confidence; None: no calibration.

    Raises:
        InputError: a file is not an output of `asr.evaluate`, or has fewer than ten utterances.
    """
    texts = read_texts(path, {}, UNCALIBRATED if dev is None else fitted_calibration(dev)).texts
    scored = sorted(read_scored(path), key=lambda result: -(texts[result.utterance.id].confidence or 0.0))
    if len(scored) < NUM_BINS:
        raise InputError(f"{path}: must hold at least {NUM_BINS} utterances; it holds {len(scored)}.")
    bins = []
    for number in range(NUM_BINS):
        group = scored[len(scored) * number // NUM_BINS : len(scored) * (number + 1) // NUM_BINS]
        confidences = [texts[result.utterance.id].confidence or 0.0 for result in group]
        counts = total(result.counts for result in group)
        errors, words = np.array([(result.counts.errors, result.counts.reference_length) for result in group]).T
        (interval,) = intervals(errors[:, None], words[:, None])
        bins.append(
            Bin(
                min(confidences),
                max(confidences),
                fmean(confidences),
                len(group),
                counts.reference_length,
                counts.rate,
                interval,
            )
        )
    return bins


def _add_options(add: AddOption) -> None:
    add("files", nargs="+", metavar="JSONL", help="NAME.utterances.jsonl of asr.evaluate")
    add(
        "--dev",
        nargs="+",
        metavar="JSONL",
        help="for each JSONL, the NAME.utterances.jsonl of a dev set, to calibrate confidence",
    )
    add("--page", type=Path, metavar="FILE.html", help="page with a chart of the tenths")


if __name__ == "__main__":
    sys.exit(main())
