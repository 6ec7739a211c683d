"""Write the manifests of LibriSpeech, one per subset, and check them against the published totals.

    python -m recipes.librispeech.prepare --corpus-dir LibriSpeech --output-dir manifests
    python -m recipes.librispeech.prepare --corpus-dir LibriSpeech --output-dir manifests \\
        --download --subsets dev-clean train-clean-100

A copy of a part of the corpus is accepted: transcript lines without audio, and audio without a transcript line, cause
warnings and are left out. Damage is an error: unreadable FLAC files or transcripts, malformed lines, and totals that
LibriSpeech cannot have. A subset with an error gets no manifest, the other subsets do, and the exit status is 1.
"""

import argparse
import statistics
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from asr.core.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from recipes.command import GO_ON, READABLE, AddOption, complain, run_recipe
from recipes.librispeech.corpus import HOURS_TOLERANCE, SUBSETS, check_subset_names, find_subsets
from recipes.librispeech.download import MIRRORS, download
from recipes.librispeech.reader import DAMAGE, Problem, ProblemKind, find_chapters, read_chapters
from recipes.output import claim

RECIPE = "recipes.librispeech.prepare"
MAX_NAMED = 10  # maximum number of printed problems of a kind; <subset>.problems.txt has all problems


@dataclass(frozen=True, slots=True)
class Completeness:
    """Result of comparing a subset with its published totals: one word for the table, one sentence for the log."""

    word: str
    sentence: str


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(RECIPE, __doc__, _add_options, _run, arguments, must=READABLE, interrupted=GO_ON)


def compare_with_published(name: str, num_utterances: int, hours: float) -> Completeness:
    """Compare a subset with its published totals.

    Raises:
        InputError: neither the subset nor a part of it can have these totals.
    """
    content = f"{num_utterances} utterances, {hours:.2f} h"
    if name not in SUBSETS:
        sentence = f"{name}: no published total applies, since LibriSpeech has no subset of this name; {content}."
        return Completeness("does not apply", sentence)
    published = SUBSETS[name]
    totals = f"{published.num_utterances} utterances, {published.hours} h"
    if num_utterances < published.num_utterances:
        sentence = (
            f"{name}: is incomplete: {content}; the published subset has {totals}. Results on it are not {name}'s."
        )
        return Completeness("partial", sentence)
    if num_utterances > published.num_utterances:
        raise InputError(f"{name}: must hold {totals}; it holds {content}. Remove files of other subsets.")
    if abs(hours - published.hours) > HOURS_TOLERANCE:
        raise InputError(
            f"{name}: its {num_utterances} utterances must last {published.hours} h (within {HOURS_TOLERANCE}); "
            f"they last {hours:.2f} h. Unpack the archive again."
        )
    return Completeness("whole", f"{name}: is complete: {content}; the published subset has {totals}.")


def prepare_subset(subset_dir: Path, output_dir: Path, progress: Progress) -> tuple[list[Utterance], Completeness]:
    """Read a subset, report its problems, and write its manifest.

    Raises:
        InputError: content is damaged, there is no utterance, or the totals are wrong; then no manifest is written.
    """
    name = subset_dir.name
    utterances, problems = _read_subset(subset_dir, progress)
    _report_problems(name, problems, output_dir / f"{name}.problems.txt")
    num_damaged = sum(problem.kind in DAMAGE for problem in problems)
    if num_damaged:
        raise InputError(
            f"{name}: must be undamaged; {num_damaged} of its files or lines are not (named above). No manifest was "
            "written. Restore them from the archive, or delete them to continue without them."
        )
    if not utterances:
        raise InputError(f"{subset_dir}: must hold speaker/chapter/*.flac and transcripts; no utterance was found.")
    hours = sum(utterance.duration for utterance in utterances) / 3600
    completeness = compare_with_published(name, len(utterances), hours)
    write_manifest(output_dir / f"{name}.jsonl", utterances)
    return utterances, completeness


def _run(options: argparse.Namespace) -> int:
    names = check_subset_names(options.subsets)
    if options.download:
        mirror = options.mirror or "openslr"
        download(names, options.corpus_dir, mirror, keep_archives=options.keep_archives)
    elif options.mirror or options.keep_archives:
        raise InputError("--mirror and --keep-archives need --download; it was not given.")
    subset_dirs = find_subsets(options.corpus_dir, names)
    claim(options.output_dir, RECIPE, [f"{subset_dir.name}.jsonl" for subset_dir in subset_dirs])
    table, sentences, exit_status = _new_table(), [], 0
    for subset_dir in subset_dirs:
        try:
            with _new_progress() as progress:
                utterances, completeness = prepare_subset(subset_dir, options.output_dir, progress)
        except InputError as error:
            complain(str(error))
            exit_status = 1
            continue
        _add_row(table, subset_dir.name, utterances, completeness)
        sentences.append(completeness.sentence)
    if sentences:
        width = None if sys.stdout.isatty() else 120  # no wrapping in a pipe
        Console(width=width).print(table)
        print("\n".join(sentences))
    return exit_status


def _read_subset(subset_dir: Path, progress: Progress) -> tuple[list[Utterance], list[Problem]]:
    chapters, problems = find_chapters(subset_dir)
    utterances: list[Utterance] = []
    task = progress.add_task(f"reading {escape(subset_dir.name)}", total=len(chapters))
    with closing(read_chapters(chapters)) as chapters_read:
        for chapter in chapters_read:
            utterances += chapter.utterances
            problems += chapter.problems
            progress.advance(task)
    return utterances, problems


def _report_problems(name: str, problems: list[Problem], list_path: Path) -> None:
    """Print the problems of each kind on stderr, and whether they are left out; write a long list to a file."""
    list_path.unlink(missing_ok=True)
    for kind in ProblemKind:
        kind_problems = [problem for problem in problems if problem.kind is kind]
        if not kind_problems:
            continue
        head = "error" if kind in DAMAGE else "warning"
        fate = "" if kind in DAMAGE else ", left out of the manifest"
        print(f"{head}: {name}: {kind.value} ({len(kind_problems)}){fate}:", file=sys.stderr)
        for problem in kind_problems[:MAX_NAMED]:
            print(f"  {problem}", file=sys.stderr)
        if len(kind_problems) > MAX_NAMED:
            print(f"  and {len(kind_problems) - MAX_NAMED} more, all named in {list_path}", file=sys.stderr)
            with list_path.open("a", encoding="utf-8", errors="surrogateescape") as out:
                out.writelines(f"{kind.value}: {problem}\n" for problem in kind_problems)


def _new_progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("chapters"))
    console = Console(stderr=True)
    disable = not console.is_terminal
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=disable)


def _new_table() -> Table:
    table = Table(box=SIMPLE)
    table.add_column("subset", overflow="fold")
    for heading in ("utterances", "hours", "speakers", "shortest s", "median s", "longest s"):
        table.add_column(heading, justify="right")
    table.add_column("published total")
    return table


def _add_row(table: Table, name: str, utterances: list[Utterance], completeness: Completeness) -> None:
    durations = [utterance.duration for utterance in utterances]
    num_speakers = len({utterance.speaker for utterance in utterances})
    seconds = (min(durations), statistics.median(durations), max(durations))
    table.add_row(
        escape(name),
        str(len(utterances)),
        f"{sum(durations) / 3600:.2f}",
        str(num_speakers),
        *(f"{value:.2f}" for value in seconds),
        completeness.word,
    )


def _add_options(add: AddOption) -> None:
    add("--corpus-dir", type=Path, required=True, help="folder of the subsets, or folder that contains LibriSpeech/")
    add("--output-dir", type=Path, required=True, help="for <subset>.jsonl")
    add("--subsets", nargs="+", default=[], metavar="NAME", help="subsets to convert (default: all in --corpus-dir)")
    add("--download", action="store_true", help="download missing --subsets from OpenSLR, and unpack them")
    add("--mirror", help=f"for --download: {', '.join(MIRRORS)}, or a base URL (default: openslr)")
    add("--keep-archives", action="store_true", help="for --download: do not remove unpacked archives")


if __name__ == "__main__":
    sys.exit(main())
