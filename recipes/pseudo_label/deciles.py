"""Compare the confidence of automatic texts with their errors, on speech whose texts are known: a report, not a filter.

    python -m asr.evaluate MODEL transcribed.jsonl --output-dir out
    python -m recipes.pseudo_label.deciles out/transcribed.utterances.jsonl --dev dev/dev.utterances.jsonl

prints the word error rate of each tenth of the utterances, ordered by confidence. --plot draws a curve for each file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asr.errors import InputError
from asr.evaluation.utterances import read_scored
from asr.evaluation.word_errors import total
from asr.recognition.confidence import UNCALIBRATED
from asr.system.files import write_output
from recipes.command import AddOption, run_recipe
from recipes.pseudo_label.texts import fitted_calibration, read_texts

NUM_BINS = 10
COLOURS = ("#c44e52", "#4c72b0", "#55a868", "#8172b2", "#937860", "#222222")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 480, 270, 46, 40, 14  # of the plot and its margins, in pixels


class Bin(NamedTuple):
    """Utterances of similar confidence.

    Args:
        lowest: confidence.
        highest: confidence.
        utterances: number of them.
        words: of their references.
        wer: a fraction.
    """

    lowest: float
    highest: float
    utterances: int
    words: int
    wer: float


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.pseudo_label.deciles", __doc__, _add_options, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    number = len(options.files)
    for option, must in (("dev", "name a file for each file"), ("names", "name each file")):
        given = getattr(options, option)
        if given is not None and len(given) != number:
            raise InputError(f"--{option} must {must}; got {len(given)} for {number}.")
    devs = options.dev or [None] * number
    curves = [deciles(path, dev) for path, dev in zip(options.files, devs, strict=True)]
    for path, bins in zip(options.files, curves, strict=True):
        print(f"{path}\nconfidence          utterances     words     WER")
        for each in bins:
            shown = f"{each.lowest:.3f} to {each.highest:.3f}"
            print(f"{shown:<18}{each.utterances:>12,}{each.words:>10,}{100 * each.wer:>6.1f} %")
    if options.plot is not None:
        names = options.names or [Path(path).parent.name for path in options.files]
        write_output("--plot", options.plot, plot(curves, names))


def deciles(path: str, dev: str | None) -> list[Bin]:
    """Divide scored utterances into tenths by their confidence, from the most to the least confident.

    Args:
        path: NAME.utterances.jsonl of `asr.evaluate`.
        dev: the same of a dev set, on which confidence is calibrated; None: it is not.

    Raises:
        InputError: a file is no such file, or there are fewer than ten utterances.
    """
    texts = read_texts(path, {}, UNCALIBRATED if dev is None else fitted_calibration(dev)).texts
    scored = sorted(read_scored(path), key=lambda each: -(texts[each.utterance.id].confidence or 0.0))
    if len(scored) < NUM_BINS:
        raise InputError(f"{path}: must hold at least {NUM_BINS} utterances; it holds {len(scored)}.")
    bins = []
    for number in range(NUM_BINS):
        group = scored[len(scored) * number // NUM_BINS : len(scored) * (number + 1) // NUM_BINS]
        confidences = [texts[each.utterance.id].confidence or 0.0 for each in group]
        counts = total(each.counts for each in group)
        bins.append(Bin(min(confidences), max(confidences), len(group), counts.reference_length, counts.rate))
    return bins


def plot(curves: Sequence[Sequence[Bin]], names: Sequence[str]) -> str:
    """Draw the WER of each tenth as an SVG, a curve for each name."""
    highest = max(1.0, *(each.wer for bins in curves for each in bins))
    step = (WIDTH - LEFT - 20) / (NUM_BINS - 1)
    scale = (HEIGHT - BOTTOM - TOP) / highest
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><g font-size="11" fill="#333">')
    for percent in range(0, round(100 * highest) + 1, 20):
        y = HEIGHT - BOTTOM - scale * percent / 100
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for number in range(NUM_BINS):
        x = LEFT + 5 + step * number
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number + 1}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">tenth, by falling confidence</text>')
    for place, (bins, name) in enumerate(zip(curves, names, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        points = [
            f"{LEFT + 5 + step * number:.1f},{HEIGHT - BOTTOM - scale * each.wer:.1f}"
            for number, each in enumerate(bins)
        ]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 14}" y="{TOP + 14 + 16 * place}" fill="{colour}">{_escaped(name)}</text>')
    return "\n".join([*parts, "</g></svg>", ""])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _add_options(add: AddOption) -> None:
    add("files", nargs="+", metavar="JSONL", help="NAME.utterances.jsonl of asr.evaluate")
    add("--dev", nargs="+", metavar="JSONL", help="the same of a dev set for each file: calibrates confidence")
    add("--plot", type=Path, metavar="SVG", help="draws the curves")
    add("--names", nargs="+", metavar="NAME", help="of the curves (the folders of the files)")


if __name__ == "__main__":
    sys.exit(main())
