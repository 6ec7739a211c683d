"""python -m benchmarks.suite: run the benchmarks one after the other, and write a page with links to their results.

Each benchmark runs with its default options in a process of its own, with OMP_NUM_THREADS threads (default: 1). If a
benchmark fails, the next one still runs; failed benchmarks are listed at the end.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asr.apps.web.page import escape, page
from asr.base.system.files import write_whole_text
from asr.core.cli.command import complain, run_command

SUITE = {  # name of each benchmark, and the options of each of its runs
    "train_step": ["", "--precision bfloat16"],
    "equal_training": [""],
    "step_profile": [""],
    "parts": [""],
    "inference": [""],
    "long_audio": [""],
    "features": [""],
    "loading": [""],
    "decoding": [""],
    "searches": [""],
    "tdt": [""],
    "training_memory": [""],
    "pages": [""],
    "optimizers": [""],
    "plan": [""],
    "corpus": [""],
    "large_corpus": [""],
    "planned_corpus": [""],
    "remote": [""],
    "remote_peers": [""],
    "bulk": ["simulate", "listing"],
    "startup": [""],
    "serve": [""],
    "long_recording": ["", "--compare --pause 0"],
    "silence": [""],
    "streaming": [""],
    "turns": [""],
    "captions": [""],
    "export": [""],
    "large_export": [""],
    "scale": [""],
    "browser": [""],
}
# Some peers' dependencies conflict with those of asr. Their benchmarks run in the environment `<current>-<name>`, which
# `make bench` creates.
ENVIRONMENTS = {
    "train_step": "nets",
    "equal_training": "nets",
    "inference": "nets",
    "long_audio": "nets",
    "searches": "nets",
    "tdt": "nets",
    "decoding": "decoding",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if any failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        default=[*SUITE],
        help=f"benchmarks to run: {', '.join(SUITE)} (default: all)",
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), metavar="DIR")
    options = parser.parse_args(arguments)
    lines = [f"{name} {variant}".strip() for name in options.names for variant in SUITE.get(name, [""])]
    outcomes = {line: run(line, options.output_dir) for line in lines}
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_whole_text(options.output_dir / "index.html", index(options.output_dir, outcomes))
    print(options.output_dir / "index.html")
    failed = [line for line, outcome in outcomes.items() if outcome.startswith("failed")]
    if failed:
        complain(f"every benchmark must succeed; failed: {', '.join(failed)}. Their error messages are above.")
    return 1 if failed else 0


def run(line: str, output_dir: Path) -> str:
    """Run a benchmark with its options, in the environment that has its peers; return its outcome and duration."""
    print(f"## {line}\n", flush=True)
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **os.environ}
    start = time.monotonic()
    name, *arguments = line.split()
    command = [interpreter(name), "-m", f"benchmarks.{name}", *arguments, "--output-dir", str(output_dir)]
    status = subprocess.run(command, env=environment).returncode
    minutes = (time.monotonic() - start) / 60
    outcome = f"failed with status {status}" if status else "done"
    print(f"\n{line}: {outcome} after {minutes:.1f} minutes\n", flush=True)
    return f"{outcome} after {minutes:.1f} minutes"


def interpreter(name: str) -> str:
    """Return the Python of a benchmark's own environment, or the current one if it has none."""
    python = Path(f"{sys.prefix}-{ENVIRONMENTS.get(name)}", "bin", "python")
    return str(python) if python.exists() else sys.executable


def index(folder: Path, outcomes: dict[str, str]) -> str:
    """Return an HTML page that lists the tables in a folder and the outcomes of this run's benchmarks."""
    links = []
    for path in sorted(folder.glob("*.json")):
        rows = len(json.loads(path.read_text(encoding="utf-8"))["rows"])
        name = escape(path.stem)
        links.append(f'<li><a href="{name}.html">{name}</a> (<a href="{name}.json">{rows} rows</a>)</li>')
    outcome_items = "".join(f"<li>{escape(name)}: {escape(outcome)}</li>" for name, outcome in outcomes.items())
    lists = f"<ul>{''.join(links)}</ul><h2>This run</h2><ul>{outcome_items}</ul>"
    return page("Benchmarks", f"<main><h1>Benchmarks</h1>{lists}</main>")


if __name__ == "__main__":
    run_command(main)
