"""From nothing to a word error rate on LibriSpeech: download, plan, check, train, evaluate, and print one table.

    python -m recipes.librispeech.speedrun 5
    python -m recipes.librispeech.speedrun 100 --corpus-dir /data/LibriSpeech --mirror eu
    make speedrun HOURS=960

5 hours are Mini LibriSpeech, 100 hours train-clean-100, 960 hours all of LibriSpeech. Each stage is a command, which is
printed. After an interruption, the same command resumes: downloads, manifests and training are not repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asr.base.text.numbers import duration, interval, rate
from asr.errors import InputError
from recipes.command import GO_ON, AddOption, run_recipe
from recipes.librispeech.download import MIRRORS

RECIPE = "recipes.librispeech.speedrun"


class Run(NamedTuple):
    """A training on a part of LibriSpeech.

    Args:
        experiment: file of conf/experiment.
        subsets: subsets to download.
        goals: WER to reach, in percent, by test subset; the experiment's file has the sources.
    """

    experiment: str
    subsets: tuple[str, ...]
    goals: dict[str, str]


DEV_AND_TEST = ("dev-clean", "dev-other", "test-clean", "test-other")
RUNS = {
    5: Run("mini_librispeech", ("train-clean-5", "dev-clean-2"), {}),
    100: Run("librispeech_100h", ("train-clean-100", *DEV_AND_TEST), {"test-clean": "7.5", "test-other": "21.0"}),
    960: Run(
        "librispeech_960h",
        ("train-clean-100", "train-clean-360", "train-other-500", *DEV_AND_TEST),
        {"test-clean": "2.6", "test-other": "6.0"},
    ),
}


def run_module(module: str, *arguments: str) -> int:
    """Run `python -m module`, which prints for itself; return its exit status."""
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode


def stages(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each stage."""
    run = RUNS[options.hours]
    data, run_dir = options.data_dir, options.run_dir or Path("runs", f"speedrun_{options.hours}h")
    manifests = [str(data / f"{name}.jsonl") for name in run.subsets]
    tests = [path for path in manifests if Path(path).stem in (run.goals or ("dev-clean-2",))]
    training = [f"experiment={run.experiment}", f"corpus.dir={data}", f"run_dir={run_dir}", *options.overrides]
    mirror = ["--mirror", options.mirror] if options.mirror else []
    folders = ["--corpus-dir", str(options.corpus_dir), "--output-dir", str(data)]
    report = ["--output-dir", str(run_dir / "evaluation"), "--report", str(run_dir / "evaluation" / "report.html")]
    download = ["recipes.librispeech.prepare", *folders, "--download", *mirror, "--subsets", *run.subsets]
    prepared = all(Path(path).is_file() for path in manifests)
    return {
        **({} if prepared else {"download and prepare": download}),
        "plan": ["asr.plan", *training],
        "check, and measure steps here": ["asr.doctor", *training],
        "train": ["asr.train", *training],
        "evaluate": ["asr.evaluate", str(run_dir), *tests, *report],
    }


def results(run_dir: Path, goals: dict[str, str]) -> list[list[str]]:
    """Return the rows of a table with the WER of each test subset."""
    evaluations = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    return [
        [name, f"{of['reference_words']:,}", rate(of["wer"]), interval(of["wer_interval"]), goals.get(name, "-")]
        for name, of in evaluations.items()
    ]


def show(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are right-aligned."""
    table = Table(box=SIMPLE)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=None if sys.stdout.isatty() else 120).print(table)  # no wrapping in a pipe


def _run(options: argparse.Namespace) -> int:
    if options.hours not in RUNS:
        raise InputError(f"HOURS must be {', '.join(map(str, RUNS))}; got {options.hours}.")
    commands, times = stages(options), []
    for number, (stage, command) in enumerate(commands.items(), 1):
        print(f"\n{number} of {len(commands)}: {stage}\npython -m {' '.join(command)}", flush=True)
        begin = time.monotonic()
        status = run_module(*command)
        if status != 0:
            raise InputError(f"each stage must succeed; {command[0]} ended with status {status}, see above{GO_ON}")
        times.append([stage, duration(time.monotonic() - begin)])
    run_dir = Path(commands["evaluate"][1])
    show(["stage", "time"], times)
    heads = ["subset", "words", "WER %", "95 % interval", "goal: at most"]
    show(heads, results(run_dir, RUNS[options.hours].goals))
    print(f"reports: {run_dir / 'report.html'}, {run_dir / 'evaluation' / 'report.html'}")
    return 0


def _add_options(add: AddOption) -> None:
    add("hours", type=int, metavar="HOURS", help="5, 100 or 960")
    add("--corpus-dir", type=Path, default=Path("data/LibriSpeech"), help="audio (default: data/LibriSpeech)")
    add("--data-dir", type=Path, default=Path("data/librispeech"), help="manifests (default: data/librispeech)")
    add("--run-dir", type=Path, help="run folder (default: runs/speedrun_<HOURS>h)")
    add("--mirror", help=f"{', '.join(MIRRORS)}, or a base URL (default: openslr)")
    add(
        "--overrides",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of asr.train, such as trainer.devices=8",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(RECIPE, __doc__, _add_options, _run, arguments, interrupted=GO_ON)


if __name__ == "__main__":
    sys.exit(main())
