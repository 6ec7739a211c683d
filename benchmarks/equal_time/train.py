"""Train rows of overrides for the same processor time each, and lay out one table of what they reach.

    python -m benchmarks.equal_time.train benchmarks/equal_time/encoders.yaml --minutes 4 --output-dir runs/encoders
    python -m benchmarks.equal_time.train benchmarks/equal_time/encoders.yaml --minutes 1.5 --output-dir runs/digits \\
        --overrides experiment=digits

Some optimizer steps of all rows are timed by turns, reading and augmentation included; each row is then trained, by
`asr.train`, for as many steps as fit into the minutes, on one thread. Processor time counts, not the clock; start-up,
validation and test come on top. A row that is in results.jsonl is not trained again.
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
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from asr.build import check_components
from asr.cli.table import lay_out
from asr.errors import InputError
from asr.run.initialization import with_parts
from asr.run.settings import RunSettings, read_run_settings
from asr.settings.conf import CONF
from asr.system.files import write_whole_text
from asr.text.numbers import interval, rate
from benchmarks.equal_time.inference import rates
from benchmarks.equal_time.trial import Cost, costs

RESULTS, COSTS = "results.jsonl", "costs.json"
MEGABYTE = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equal_time.train", description=(__doc__ or "").strip())
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
        names = options.only or [*rows]
        commands = {
            name: [*options.overrides, *rows[name], f"run_dir={options.output_dir / name}", "num_threads=1"]
            for name in rows
        }
        planned = plan(options.output_dir / COSTS, commands, 60 * options.minutes)
        for name in names:
            if name not in read_results(options.output_dir):
                result = train(options.output_dir / name, commands[name], planned[name])
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


def plan(path: Path, commands: Mapping[str, Sequence[str]], seconds: float) -> dict[str, int]:
    """Count the optimizer steps that fit into so many seconds, of each row; what a step costs is kept.

    Raises:
        InputError: a row's overrides do not hold, or the rows kept there are others.
    """
    if not path.exists():
        with initialize_config_dir(str(CONF), version_base="1.3"):
            rows = {name: _composed(name, command) for name, command in commands.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # whose memory must not count as a training's
            write_whole_text(path, json.dumps(other.submit(costs, rows).result()))
    kept = read_costs(path)
    if kept.keys() != commands.keys():
        raise InputError(
            f"{path} must be of the same rows; it has {', '.join(kept)}. Remove it, or take another folder."
        )
    return {name: max(1, round(seconds / cost.seconds)) for name, cost in kept.items()}


def _composed(name: str, command: Sequence[str]) -> RunSettings:
    """Compose a row's settings as asr.train does."""
    try:
        composed = compose("train", overrides=list(command))
    except HydraException as error:
        raise InputError(f"row {name}: {str(error).splitlines()[0]}") from None
    config: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    settings = with_parts(read_run_settings(config), command)
    check_components(settings.components)
    return settings


def read_costs(path: Path) -> dict[str, Cost]:
    """Read what a step of each row costs."""
    return {name: Cost(*cost) for name, cost in json.loads(path.read_text(encoding="utf-8")).items()}


def train(run_dir: Path, command: Sequence[str], steps: int) -> dict[str, Any]:
    """Train a row for so many steps, and test it.

    Raises:
        InputError: the training ended with an error, which it has printed.
    """
    used = _run("asr.train", [*command, "trainer.max_epochs=-1", f"trainer.max_steps={steps}"])
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    test = next(iter(results.values()))
    return {
        "steps": steps,
        "minutes": (used.ru_utime + used.ru_stime) / 60,
        "memory": used.ru_maxrss * 1024 / MEGABYTE,  # Linux counts in KiB
        "wer": test["wer"],
        "interval": test["wer_interval"],
    }


def _run(module: str, arguments: Sequence[str]) -> resource.struct_rusage:
    """Run a module to its end; return what it used.

    Raises:
        InputError: it ended with an error.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise InputError(f"python -m {module} must succeed; it ended with status {process.returncode}.")
    return used


def table(results: Mapping[str, Mapping[str, Any]], costs: Mapping[str, Cost], rates: Mapping[str, float]) -> list[str]:
    """Lay out what the rows have reached, a line each."""
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
