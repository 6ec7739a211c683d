"""Train several configurations (rows) for equal CPU time, and print a table of their results.

    python -m benchmarks.equal_time.train benchmarks/equal_time/encoders.yaml --minutes 4 --output-dir runs/encoders
    python -m benchmarks.equal_time.train benchmarks/equal_time/encoders.yaml --minutes 1.5 --output-dir runs/digits \\
        --overrides experiment=digits

First, some optimizer steps of all rows are timed, including reading and augmentation; the rows take turns. Then
`asr.train` trains each row on one thread, for the number of steps that fit into --minutes of CPU time; start-up,
validation and testing take additional time. A row that is already in results.jsonl is not trained again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from asr.base.system.files import write_whole_text
from asr.base.text.numbers import interval, rate
from asr.base.text.table import lay_out
from asr.errors import InputError
from benchmarks.equal_time.inference import rates
from benchmarks.equal_time.trial import Cost, costs
from benchmarks.training_speech import composed

RESULTS, COSTS = "results.jsonl", "costs.json"
MEGABYTE = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equal_time.train", description=(__doc__ or "").strip())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "rows", type=Path, metavar="YAML", help="file that maps the name of each row to its list of overrides"
    )
    parser.add_argument(
        "--minutes", type=float, required=True, metavar="M", help="CPU minutes of training for each row"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of the results and of one run folder per row",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows to train (default: all)")
    parser.add_argument(
        "--overrides",
        nargs="+",
        default=[],
        metavar="OVERRIDE",
        help="overrides for all rows, applied before the row's own",
    )
    options = parser.parse_args(arguments)
    try:
        rows = read_rows(options.rows)
        if unknown := set(options.only or ()) - set(rows):
            raise InputError(f"--only must name rows of {options.rows}; got {', '.join(sorted(unknown))}.")
        if not options.minutes > 0:
            raise InputError(f"--minutes must be positive; got {options.minutes:g}.")
        names = options.only or [*rows]
        commands = {
            name: [*options.overrides, *rows[name], f"run_dir={options.output_dir / name}", "num_threads=1"]
            for name in rows
        }
        steps = plan_steps(options.output_dir / COSTS, commands, 60 * options.minutes)
        for name in names:
            if name not in read_results(options.output_dir):
                result = train(options.output_dir / name, commands[name], steps[name])
                with (options.output_dir / RESULTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"row": name} | result) + "\n")
        results = read_results(options.output_dir)
        inference = rates({name: options.output_dir / name for name in results})
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(results, read_costs(options.output_dir / COSTS), inference)))
    return 0


def read_rows(path: Path) -> dict[str, list[str]]:
    """Read a file of rows; return {name: overrides}.

    Raises:
        InputError: the file does not map names to lists of overrides.
    """
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the file of rows must be YAML; {path}: {error}") from None
    if not isinstance(rows, dict) or not all(
        isinstance(row, list) and all(isinstance(override, str) for override in row) for row in rows.values()
    ):
        raise InputError(f"{path} must map names to lists of overrides, for example [encoder=lstm, encoder.dim=288].")
    return {str(name): row for name, row in rows.items()}


def read_results(output_dir: Path) -> dict[str, dict[str, Any]]:
    """Read the results of the rows trained so far, by name."""
    path = output_dir / RESULTS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["row"]: result for result in map(json.loads, lines)}


def plan_steps(path: Path, commands: Mapping[str, Sequence[str]], seconds: float) -> dict[str, int]:
    """Return, for each configuration, the number of optimizer steps that fit into `seconds` of CPU time.

    The measured costs of a step are stored in `path`; later calls read them from there.

    Raises:
        InputError: a row's overrides are invalid, or `path` has costs of other rows.
    """
    if not path.exists():
        rows = {name: composed(command) for name, command in commands.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(
            1, get_context("spawn")
        ) as pool:  # in a child process, so that its memory is not counted for a training run
            write_whole_text(path, json.dumps(pool.submit(costs, rows).result()))
    stored_costs = read_costs(path)
    if stored_costs.keys() != commands.keys():
        raise InputError(
            f"{path} must have the rows of this command; it has {', '.join(stored_costs)}. "
            "Remove it, or choose another --output-dir."
        )
    return {name: max(1, round(seconds / cost.seconds)) for name, cost in stored_costs.items()}


def read_costs(path: Path) -> dict[str, Cost]:
    """Read the stored costs: the cost of one optimizer step of each configuration, by name."""
    return {name: Cost(*cost) for name, cost in json.loads(path.read_text(encoding="utf-8")).items()}


def train(run_dir: Path, command: Sequence[str], steps: int) -> dict[str, Any]:
    """Train a row for `steps` optimizer steps, test it, and return its results.

    Raises:
        InputError: asr.train failed; it has printed its error.
    """
    usage = _run("asr.train", [*command, "trainer.max_epochs=-1", f"trainer.max_steps={steps}"])
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    test = next(iter(results.values()))
    return {
        "steps": steps,
        "minutes": (usage.ru_utime + usage.ru_stime) / 60,
        "memory": usage.ru_maxrss * 1024 / MEGABYTE,  # Linux reports KiB
        "wer": test["wer"],
        "interval": test["wer_interval"],
    }


def _run(module: str, arguments: Sequence[str]) -> resource.struct_rusage:
    """Run a module as a program; return its resource usage.

    Raises:
        InputError: the program exited with a non-zero status.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise InputError(f"python -m {module} must succeed; it exited with status {process.returncode}.")
    return usage


def table(results: Mapping[str, Mapping[str, Any]], costs: Mapping[str, Cost], rates: Mapping[str, float]) -> list[str]:
    """Return the lines of a text table of the results; each configuration has one line."""
    head = ["", "parameters", "steps", "WER", "95 %", "training", "inference", "memory", "minutes"]
    lines = [
        [
            name,
            f"{costs[name].parameters / 1e6:.2f} M",
            f"{result['steps']}",
            rate(result["wer"]),
            interval(result["interval"]),
            f"{costs[name].audio / costs[name].seconds:.0f} s/s",
            f"{rates[name]:.0f} s/s",
            f"{result['memory']:.0f} MB",
            f"{result['minutes']:.1f}",
        ]
        for name, result in results.items()
    ]
    return lay_out([head, *lines])


if __name__ == "__main__":
    sys.exit(main())
