"""python -m benchmarks.time_to_wer: train in asr and other toolkits, and compare the CPU time to a WER.

    python -m benchmarks.time_to_wer recommended          # each toolkit's published recipe
    python -m benchmarks.time_to_wer equal                # equal batches, rates, speeds and initialisation
    python -m benchmarks.time_to_wer tuned                # after trials of learning rate, batch size and epochs
    python -m benchmarks.time_to_wer optimizers --toolkits asr   # asr's optimizers, the best two trials of each
    python -m benchmarks.time_to_wer finetuned --overrides init.from=MODEL corpus...   # asr's and NeMo's fine-tuning

Each training is a process with one thread. The clock counts the CPU time of training steps, in which audio is read and
features are computed anew; the start of the process and evaluations are excluded. The WER is measured on the
validation set during the training and interpolated; the WER on the test set is that of the final model. NeMo and
transformers run in the Python of --peers. A training that is in the output folder is not repeated.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.page import page
from asr.base.system.files import write_whole_text
from asr.base.text.numbers import interval, percent, rate
from asr.core.cli.command import run_command
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results
from benchmarks.time_to_wer.recipe import (
    ASR,
    BATCH_SECONDS,
    OPTIMIZERS,
    PUBLISHED,
    RATES,
    Recipe,
    equal,
    finetuned,
    optimizer_trials,
    recommended,
    trials,
)
from benchmarks.time_to_wer.watch import Point, time_to

PEERS = Path(".venv-nets/bin/python")

Run = dict[str, Any]


class Contest:
    """Run recipes; each result is stored in the output folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.output_dir / "time_to_wer"
        self._overrides: list[str] = options.overrides
        self._peers: Path = options.peers

    def run(self, recipe: Recipe, epochs: int, seed: int) -> Run:
        """Return the result of a training; train unless the result is stored."""
        overrides = [*self._overrides, f"trainer.max_epochs={epochs}", f"seed={seed}"]
        given = json.dumps([recipe, overrides])
        run_dir = self._folder / hashlib.sha256(given.encode()).hexdigest()[:12]
        path = run_dir / "contest.json"
        if not path.exists():
            print(f"{recipe.toolkit}, {recipe.name}, seed {seed}, epochs {epochs}", file=sys.stderr, flush=True)
            python = sys.executable if recipe.toolkit == ASR else str(self._peers)
            arguments = [json.dumps(recipe), json.dumps([*overrides, f"run_dir={run_dir}"]), str(path)]
            process = subprocess.run([python, "-m", "benchmarks.time_to_wer.trial", *arguments], stdout=sys.stderr)
            if process.returncode != 0:
                raise InputError(f"{recipe.toolkit}, {recipe.name}: the training failed; its error is above.")
        result: Run = json.loads(path.read_text(encoding="utf-8"))
        return result | {"toolkit": recipe.toolkit, "recipe": recipe.name, "seed": seed}


def recipes(options: argparse.Namespace, contest: Contest) -> Iterable[Recipe]:
    """Return the recipes of a table; run the trials of the tables `tuned` and `optimizers`, and return the best."""
    known = {"recommended": recommended, "equal": equal, "finetuned": finetuned}
    if options.table in known:
        return [recipe for recipe in known[options.table]() if recipe.toolkit in options.toolkits]
    if options.table == "optimizers":
        searches = [_best(optimizer_trials(optimizer), options, contest) for optimizer in OPTIMIZERS]
        return [recipe for search in searches for recipe in search[:2]]
    grid = options.rates, options.batch_seconds
    return [_best(trials(toolkit, *grid), options, contest)[0] for toolkit in options.toolkits]


def _best(trials: Sequence[Recipe], options: argparse.Namespace, contest: Contest) -> list[Recipe]:
    if len(trials) == 1:
        return list(trials)
    wers = {}
    for number, recipe in enumerate(trials):
        points = contest.run(recipe, options.trial_epochs, options.seeds[0])["points"]
        wers[number] = Point(*points[-1]).wer
        print(f"trial: {recipe.toolkit}, {recipe.name}: validation WER {rate(wers[number])}", flush=True)
    return [trials[number] for number in sorted(wers, key=wers.__getitem__)]


def planned(recipe: Recipe, options: argparse.Namespace, contest: Contest) -> int:
    """Return the epochs of a recipe's trainings: of those given, the number with the least CPU time to the WER.

    The learning rate of a longer training falls later, so that it may reach the WER later. Without the WER, the most.
    """
    if len(options.epochs) == 1:
        return int(options.epochs[0])
    times = {}
    for epochs in sorted(options.epochs):
        points = contest.run(recipe, epochs, options.seeds[0])["points"]
        time = time_to(options.wer, [Point(*point) for point in points])
        print(f"trial: {recipe.toolkit}, {recipe.name}: {epochs} epochs, CPU s to the WER: {time}", flush=True)
        if time is not None:
            times[epochs] = time
    return min(times, key=times.__getitem__) if times else max(options.epochs)


def curves(title: str, runs: Sequence[Run]) -> str:
    """Return a page with a chart of WER over CPU minutes for each seed."""

    def series(seed: int) -> Iterator[Series]:
        for run in runs:
            if run["seed"] == seed:
                points = [(point.seconds / 60, point.wer) for point in (Point(*each) for each in run["points"])]
                yield Series(f"{run['toolkit']}, {run['recipe']}", points)

    axes = Axis("CPU minutes"), Axis("WER on the validation set", percent, low=0.0, high=1.0)
    seeds = sorted({run["seed"] for run in runs})
    charts = [line_chart(f"Seed {seed}", *axes, list(series(seed))) for seed in seeds]
    return page(title, f'<main><h1>{title}</h1><div class="charts">{"".join(charts)}</div></main>')


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print a row for each training."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.time_to_wer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", choices=("recommended", "equal", "tuned", "optimizers", "finetuned"), help="what is compared"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        nargs="+",
        default=[6],
        metavar="N",
        help="epochs of each training (default: 6); of several, each toolkit takes that with which the first "
        "seed reaches the WER first",
    )
    parser.add_argument("--trial-epochs", type=int, default=3, metavar="N", help="epochs of each trial (default: 3)")
    parser.add_argument(
        "--rates", nargs="+", default=RATES, metavar="RATE", help="learning rates of the trials of tuned"
    )
    parser.add_argument(
        "--batch-seconds",
        type=int,
        nargs="+",
        default=BATCH_SECONDS,
        metavar="S",
        help="batches of the trials of tuned",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED", help="default: 0 1 2")
    parser.add_argument("--wer", type=float, default=0.1, metavar="WER", help="the WER to reach (default: 0.1)")
    parser.add_argument("--toolkits", nargs="+", choices=[*PUBLISHED], default=[*PUBLISHED], help="default: all")
    parser.add_argument("--peers", type=Path, default=PEERS, metavar="PYTHON", help=f"default: {PEERS}")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="OVERRIDE", help="overrides of all trainings")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    if not options.peers.exists() and options.toolkits != [ASR]:
        must = "--peers must be a Python with the packages of benchmarks/environments/nets.txt"
        raise InputError(
            f"{must}; {options.peers} does not exist. Make it with make .venv-nets, or give --toolkits asr."
        )
    contest = Contest(options)
    chosen = [(recipe, planned(recipe, options, contest)) for recipe in recipes(options, contest)]
    seconds = "{:,.0f}".format
    text = {"toolkit": str, "recipe": str, "seed": str}
    table = Results(
        f"time_to_wer_{options.table}",
        {
            **text,
            "parameters": lambda number: f"{number / 1e6:.2f} M",
            "epochs": str,
            "CPU s to start": seconds,
            "CPU s of training": seconds,
            f"CPU s to {options.wer:.0%} WER": seconds,
            "validation WER": rate,
            "test WER": rate,
            "95 %": interval,
        },
        bars=f"CPU s to {options.wer:.0%} WER",
    )
    runs = []
    for seed in options.seeds:  # the toolkits take turns, so that a change in machine speed affects all of them
        for recipe, epochs in chosen:
            run = contest.run(recipe, epochs, seed)
            points = [Point(*point) for point in run["points"]]
            runs.append(run)
            last = points[-1]
            times = (run["start_seconds"], last.seconds, time_to(options.wer, points))
            names = (recipe.toolkit, recipe.name, str(seed))
            table.row(*names, run["parameters"], str(epochs), *times, last.wer, run["test"], run["interval"])
    table.save(options.output_dir, about(options))
    path = options.output_dir / f"time_to_wer_{options.table}_curves.html"
    write_whole_text(path, curves(f"Time to a WER, {options.table}", runs))
    print(f"{path}\n", flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)
