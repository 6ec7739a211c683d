"""python -m asr.compare A B: test whether one model is better than another."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.apps.report.options import add_report, audio_budget
from asr.base.system.files import check_output, is_stream, message_stream, write_output
from asr.base.text.numbers import counted, interval, points, probability, rate
from asr.base.text.printable import listed, printable
from asr.base.text.table import lay_out, short_name
from asr.core.cli.command import audio_progress, run_command
from asr.core.cli.parser import CommandParser
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.core.evaluation.utterances import Scored

TOP = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two evaluations of the same manifest."""
    options = parse(arguments)
    budget = audio_budget(options, [options.a, options.b])
    from asr.core.evaluation.comparison import compare
    from asr.core.evaluation.utterances import read_scored

    a, b = read_scored(options.a), read_scored(options.b)
    comparison = compare(a, b)
    names = options.names or [name_of(options.a), name_of(options.b)]
    lines = [*headline(comparison, *names), *changes(comparison, a, b, options.top)]
    print("\n".join(lines), file=message_stream(options.json, options.report))
    if options.json:
        write_output("--json", options.json, json.dumps(comparison, indent=2, allow_nan=False) + "\n")
    if options.report:
        write_output("--report", options.report, report(a, b, comparison, names, budget))
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = CommandParser(
        prog="python -m asr.compare",
        description="Test whether one model has fewer errors than another.",
        epilog="To compare on several manifests together: <(cat A/*.utterances.jsonl) <(cat B/*.utterances.jsonl)",
    )
    written = "NAME.utterances.jsonl of asr.evaluate --output-dir, or a folder with one"
    parser.add_argument("a", metavar="A", help=f"results of the first model: {written}")
    parser.add_argument("b", metavar="B", help="results of the second model on the same utterances")
    parser.add_argument("--names", nargs=2, metavar=("A", "B"), help="names of the models, shown instead of the paths")
    parser.add_argument(
        "--top", type=int, default=TOP, metavar="N", help=f"number of utterances to show (default {TOP})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    add_report(parser)
    options = parser.parse_args(arguments)
    if options.top < 0:
        raise InputError(f"--top must not be negative; got {options.top}.")
    options.a, options.b = utterances_of(options.a), utterances_of(options.b)
    if options.json:
        check_output("--json", options.json, "figures.json", inputs=[options.a, options.b])
        if options.report and os.path.realpath(options.report) == os.path.realpath(options.json):
            raise InputError(f"--json and --report must be two files; both are {options.json}.")
    return options


def utterances_of(path: str) -> str:
    """Return the path of the NAME.utterances.jsonl in a folder; any other path is returned unchanged."""
    if not os.path.isdir(path):
        return path
    files = sorted(Path(path).glob("*.utterances.jsonl"))
    if len(files) == 1:
        return str(files[0])
    must = f"{path}: a folder must have exactly one NAME.utterances.jsonl"
    if not files:
        raise InputError(f"{must}; it has none. Give a folder that asr.evaluate --output-dir has written.")
    names = listed([file.name for file in files])
    raise InputError(f"{must}; it has {len(files)}: {names}. Give one of these files.")


def report(
    a: "Sequence[Scored]",
    b: "Sequence[Scored]",
    comparison: Mapping[str, Any],
    names: Sequence[str],
    budget: float,
) -> str:
    """Make the page, with up to `budget` bytes of recordings of the utterances that changed most."""
    from asr.apps.report.comparison import comparison_report
    from asr.apps.report.evaluation import About
    from asr.apps.web.clips import record
    from asr.core.evaluation.comparison import counts_of, match

    utterances = [result.utterance for result in a]
    unit = comparison["unit"]
    errors = [
        (counts_of(result_a, unit).errors, counts_of(result_b, unit).errors) for result_a, result_b in match(a, b)
    ]
    changes = [(abs(errors_b - errors_a), errors_a) for errors_a, errors_b in errors]
    order = sorted(range(len(changes)), key=lambda index: changes[index], reverse=True)
    with audio_progress("recordings", utterances) as on_progress:
        clips = record(utterances, order, budget, on_progress=on_progress)
    about = About("Comparison of two models", [("A", names[0]), ("B", names[1])])
    return comparison_report(a, b, comparison, about, clips)


def name_of(path: str) -> str:
    """Return the name of a model: the path of its utterances; a pipe has no name."""
    return "(from a pipe)" if os.path.exists(path) and is_stream(Path(path)) else path


def headline(comparison: Mapping[str, Any], a: str, b: str) -> list[str]:
    """Return lines with the verdict, both rates, their difference with its interval, and each model's wins."""
    from asr.base.text.scripts import NO_WORDS
    from asr.core.evaluation.comparison import change, rate_name, verdict

    rows: list[tuple[str, ...]] = [
        ("", f"{rate_name(comparison)} %", "95 % interval", "errors", "subst.", "ins.", "del.")
    ]
    for which, model in (("a", a), ("b", b)):
        words = comparison[which]
        counts = (str(words[key]) for key in ("errors", "substitutions", "insertions", "deletions"))
        name = f"{which.upper()} {short_name(printable(model), 40)}"
        rows.append((name, rate(words["rate"]), interval(words["interval"]), *counts))
    words = f"{comparison['utterances']} utterances, {comparison['a']['reference_length']} {comparison['unit']}s"
    difference = f"B minus A, {words}: {change(comparison)}"
    note = [NO_WORDS] if comparison["unit"] == "character" else []
    return [verdict(comparison), *note, "", *lay_out(rows), "", difference, *lay_out(chances(comparison))]


def chances(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row per sampling unit: interval and p-value of the difference, and each model's wins."""
    rows: list[tuple[str, ...]] = [("over", "95 % interval, points", "p", "A better", "B better", "as good")]
    for unit, prefix in (("utterances", ""), ("speakers", "speaker_")):
        wins, ends = comparison[f"{unit[:-1]}_wins"], comparison["difference"][f"{prefix}interval"]
        if wins is None:
            rows.append((unit, "not all are known", *"----"))
            continue
        between = "too few to say" if ends is None else interval(ends, points)
        p_value = comparison["difference"][f"{prefix}p_value"]
        rows.append((unit, between, probability(p_value), *(str(wins[key]) for key in ("a", "b", "tie"))))
    return rows


def changes(comparison: Mapping[str, Any], a: "Sequence[Scored]", b: "Sequence[Scored]", top: int) -> list[str]:
    """Return lines with the utterances that changed most: the reference, and both hypotheses aligned with it."""
    rows = comparison["changed"][:top]
    if not rows:
        return []
    from asr.apps.report.side_by_side import LEGEND, side_by_side
    from asr.core.evaluation.comparison import counts_of

    results_a, results_b = ({(result.subset, result.utterance.id): result for result in results} for results in (a, b))
    num_changed = len(comparison["changed"])
    lines = ["", f"The {len(rows)} utterances that changed most, of {num_changed} that changed. {LEGEND}"]
    for row in rows:
        key = (row["subset"], row["id"])
        first, second = results_a[key], results_b[key]
        in_a, in_b = (counts_of(result, comparison["unit"]).errors for result in (first, second))
        errors = f"{counted(in_a, 'error')} in A, {in_b} in B"
        lines += ["", printable(f"{row['id']} ({row['subset']}), {row['change']:+d}: {errors}")]
        lines += side_by_side(first.reference, first.transcript.text, second.transcript.text)
    return lines


if __name__ == "__main__":
    run_command(main)
