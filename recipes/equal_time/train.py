"""Train rows of overrides for the same processor time each, and lay out one table of what they reach.

    python -m recipes.equal_time.train recipes/equal_time/encoders.yaml --minutes 4 --output-dir runs/encoders
    python -m recipes.equal_time.train recipes/equal_time/encoders.yaml --minutes 2 --output-dir runs/digits-encoders \\
        --overrides experiment=digits

Of each row some optimizer steps are timed first, reading and augmentation included; the row is then trained, by
`asr.train`, for as many steps as fit into the minutes, on one thread. Processor time counts, not the clock, so other
work beside it changes little. Start-up, validation and test come on top. A row that is in results.jsonl is not trained
again.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asr.cli.table import lay_out
from asr.errors import InputError
from asr.text.numbers import interval, rate

RESULTS = "results.jsonl"
MEGABYTE = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recipes.equal_time.train", description=(__doc__ or "").strip())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rows", type=Path, metavar="YAML", help="of rows: a name, and its list of overrides")
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="of the processor, for each row")
    parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="of a run folder for each row")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the rows; all, where this is not given")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="OVERRIDE", help="of all rows, before their own")
    options = parser.parse_args(arguments)
    try:
        rows = read_rows(options.rows)
        if unknown := set(options.only or ()) - set(rows):
            raise InputError(f"--only must name rows of {options.rows}; got {', '.join(sorted(unknown))}.")
        if not options.minutes > 0:
            raise InputError(f"--minutes must be positive; got {options.minutes:g}.")
        for name in options.only or rows:
            if name not in read_results(options.output_dir):
                result = train(options.output_dir / name, [*options.overrides, *rows[name]], 60 * options.minutes)
                with (options.output_dir / RESULTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"row": name} | result) + "\n")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(read_results(options.output_dir))))
    return 0


def read_rows(path: Path) -> dict[str, list[str]]:
    """Read the overrides of each row by its name.

    Raises:
        InputError: the file is not such a mapping.
    """
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the file of rows must be YAML; {path}: {error}") from None
    if not isinstance(rows, dict) or not all(
        isinstance(row, list) and all(isinstance(override, str) for override in row) for row in rows.values()
    ):
        raise InputError(f"{path} must map names to lists of overrides, [encoder=lstm, encoder.dim=288] say.")
    return {str(name): row for name, row in rows.items()}


def read_results(output_dir: Path) -> dict[str, dict[str, Any]]:
    """Read what rows have reached, by their names."""
    path = output_dir / RESULTS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result["row"]: result for result in map(json.loads, lines)}


def train(run_dir: Path, overrides: Sequence[str], seconds: float) -> dict[str, Any]:
    """Train a row for so many seconds of the processor, and test it.

    Raises:
        InputError: the training ended with an error, which it has printed.
    """
    common = [*overrides, f"run_dir={run_dir}", "num_threads=1"]
    trial = json.loads(_run("recipes.equal_time.trial", common)[0])
    steps = max(1, round(seconds / trial["seconds"]))
    bounds = ["trainer.max_epochs=-1", f"trainer.max_steps={steps}"]
    _, used = _run("asr.train", [*common, *bounds])
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    test = next(iter(results.values()))
    return {
        "parameters": trial["parameters"],
        "steps": steps,
        "audio_per_second": trial["audio"] / trial["seconds"],
        "minutes": (used.ru_utime + used.ru_stime) / 60,
        "memory": used.ru_maxrss * 1024 / MEGABYTE,  # Linux counts in KiB
        "inference_per_second": float(_run("recipes.equal_time.inference", [str(run_dir)])[0]),
        "wer": test["wer"],
        "interval": test["wer_interval"],
    }


def _run(module: str, arguments: Sequence[str]) -> tuple[str, Any]:
    """Run a module to its end; what it printed, and what it used.

    Raises:
        InputError: it ended with an error.
    """
    with subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise InputError(f"python -m {module} must succeed; it ended with status {process.returncode}.")
    return printed, used


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lay out what the rows have reached, a line each."""
    head = ["", "parameters", "steps", "WER %", "95 %", "audio s/s, training", "inference", "memory MB", "minutes"]
    lines = [
        [
            name,
            f"{result['parameters'] / 1e6:.2f} M",
            f"{result['steps']}",
            rate(result["wer"]),
            interval(result["interval"]),
            f"{result['audio_per_second']:.0f}",
            f"{result['inference_per_second']:.0f}",
            f"{result['memory']:.0f}",
            f"{result['minutes']:.1f}",
        ]
        for name, result in results.items()
    ]
    return lay_out([head, *lines])


if __name__ == "__main__":
    sys.exit(main())
