"""Make a training manifest of automatic transcripts that are probably correct.

    python -m asr.evaluate MODEL dev.jsonl --output-dir dev
    python -m asr.transcribe MODEL untranscribed.jsonl --parts --output-dir texts
    python -m recipes.pseudo_label texts --dev dev/dev.utterances.jsonl --keep 0.7 --output-dir data/pseudo_label

This writes `pseudo.jsonl`, a manifest with the confidence of each line, and `left_out.jsonl`, with the id of each
excluded utterance and the reason. It prints the number of utterances excluded for each reason; if several reasons apply
to an utterance, only the first one counts.

TEXTS is the folder of a bulk job (if it has files of segments, only these are read), a file of `asr.transcribe --format
jsonl` together with --manifest, or NAME.utterances.jsonl of `asr.evaluate`, whose references are not read.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asr.base.system.files import write_whole_text
from asr.core.recognition.confidence import UNCALIBRATED
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim
from recipes.pseudo_label.filters import Limits, reasons, sort_out
from recipes.pseudo_label.texts import AutomaticText, fitted_calibration, read_audio, read_texts

PSEUDO, LEFT_OUT = "pseudo.jsonl", "left_out.jsonl"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.pseudo_label", __doc__, _add_options, _run, arguments, must=ROOM)


def _run(options: argparse.Namespace) -> None:
    limits = _limits(options)
    audio = {} if options.manifest is None else read_audio(options.manifest)
    calibration = UNCALIBRATED if options.dev is None else fitted_calibration(options.dev)
    output = read_texts(options.texts, audio, calibration)
    second = None if options.second is None else read_texts(options.second, audio, UNCALIBRATED).texts
    texts = list(output.texts.values())
    chosen, left_out = sort_out(texts, reasons(limits, second), options.keep)
    _print_table(output.failures, left_out, chosen)
    if not chosen:
        raise InputError(f"{options.texts}: at least one text must pass all filters; the table shows why none did.")
    claim(options.output_dir, "recipes.pseudo_label", [PSEUDO, LEFT_OUT])
    _write(options.output_dir / PSEUDO, (text.as_dict() for text in chosen))
    entries = [{"id": name, "reason": "not transcribed"} for name in output.failures]
    entries += [{"id": text.utterance.id, "reason": name} for name, group in left_out.items() for text in group]
    _write(options.output_dir / LEFT_OUT, entries)


def _limits(options: argparse.Namespace) -> Limits:
    """Check the options and collect the limits."""
    for name in ("keep", "min_confidence", "max_disagreement"):
        value = getattr(options, name)
        if not 0 <= value <= 1 or (name == "keep" and value == 0):
            above = "more than 0" if name == "keep" else "from 0"
            raise InputError(f"--{name.replace('_', '-')} must be {above} to 1; got {value:g}.")
    for name in ("seconds", "words", "characters_per_second"):
        low, high = getattr(options, name)
        if not 0 <= low <= high:
            raise InputError(f"--{name.replace('_', '-')} must be two numbers, 0 <= MIN <= MAX; got {low:g} {high:g}.")
    if options.max_repeats < 1:
        raise InputError(f"--max-repeats must be at least 1; got {options.max_repeats}.")
    return Limits(
        options.min_confidence,
        tuple(options.seconds),
        tuple(options.words),
        tuple(options.characters_per_second),
        options.max_repeats,
        None if options.characters is None else frozenset(options.characters),
        options.max_disagreement,
    )


def _print_table(
    failures: tuple[str, ...], left_out: Mapping[str, list[AutomaticText]], chosen: list[AutomaticText]
) -> None:
    rows = [("not transcribed", len(failures), "-")]
    rows += [(name, len(group), f"{_hours(group):.2f}") for name, group in left_out.items()]
    rows.append(("to train on", len(chosen), f"{_hours(chosen):.2f}"))
    total = sum(number for _, number, _ in rows)
    print(f"{'left out for':<26}{'utterances':>12}{'hours':>10}{'share':>10}")
    for name, number, hours in rows:
        print(f"{name:<26}{number:>12,}{hours:>10}{100 * number / total:>8.1f} %")


def _hours(texts: Iterable[AutomaticText]) -> float:
    return sum(text.utterance.duration for text in texts) / 3600


def _write(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    write_whole_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))


def _add_options(add: AddOption) -> None:
    add("texts", metavar="TEXTS", help="folder or URL of asr.transcribe --parts, or a JSONL file")
    add("--output-dir", type=Path, required=True, metavar="DIR", help=f"for {PSEUDO} and {LEFT_OUT}")
    add(
        "--dev",
        metavar="JSONL",
        help="output of asr.evaluate by the same model on transcribed speech, to calibrate confidence",
    )
    add("--manifest", metavar="MANIFEST", help="manifest of the audio, for texts without audio paths")
    add("--second", metavar="TEXTS", help="output of another model that must agree with the texts")
    add(
        "--max-disagreement",
        type=float,
        default=0.1,
        metavar="F",
        help="maximum word error rate between both texts (0.1)",
    )
    add("--keep", type=float, default=1.0, metavar="F", help="fraction of the passing texts to keep, best first (1)")
    add("--min-confidence", type=float, default=0.0, metavar="C", help="minimum mean confidence of the words (0)")
    numbers: dict[str, Any] = {"nargs": 2, "metavar": ("MIN", "MAX")}
    add("--seconds", type=float, default=(0.5, 30.0), help="seconds of audio (0.5 30)", **numbers)
    add("--words", type=int, default=(1, 1000), help="number of words (1 1000)", **numbers)
    add(
        "--characters-per-second",
        type=float,
        default=(1.0, 25.0),
        help="characters per second, without spaces (1 25)",
        **numbers,
    )
    add(
        "--max-repeats",
        type=int,
        default=3,
        metavar="N",
        help="maximum repetitions of a phrase of up to four words (3)",
    )
    add("--characters", metavar="LIST", help="accepted characters besides spaces (letters, digits and punctuation)")


if __name__ == "__main__":
    sys.exit(main())
