"""python -m benchmarks.suite: run the benchmarks one after the other, and make a page that links what they keep.

Each runs with its defaults, in a process of its own, whose threads are OMP_NUM_THREADS or one. One that fails is named
at the end, and does not keep the next one from its turn.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asr.cli.command import complain, run_command
from asr.system.files import write_whole_text
from asr.web.page import escape, page

SUITE = {  # benchmarks, and the options of each run of theirs
    "train_step": ["", "--precision bfloat16"],
    "step_profile": [""],
    "parts": [""],
    "inference": [""],
    "long_audio": [""],
    "features": [""],
    "loading": [""],
    "decoding": [""],
    "searches": [""],
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
    "captions": [""],
    "export": [""],
    "scale": [""],
    "browser": [""],
}
# A benchmark whose peers do not resolve with asr has an environment `<this one>-<name>`; the Makefile makes it.
ENVIRONMENTS = {
    "train_step": "nets",
    "inference": "nets",
    "long_audio": "nets",
    "searches": "nets",
    "decoding": "decoding",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the status is 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", default=[*SUITE], help=f"of {', '.join(SUITE)} (all)")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), metavar="DIR")
    given = parser.parse_args(arguments)
    lines = [f"{name} {options}".strip() for name in given.names for options in SUITE.get(name, [""])]
    outcomes = {line: run(line, given.output_dir) for line in lines}
    given.output_dir.mkdir(parents=True, exist_ok=True)
    write_whole_text(given.output_dir / "index.html", index(given.output_dir, outcomes))
    print(given.output_dir / "index.html")
    failed = [line for line, outcome in outcomes.items() if outcome.startswith("failed")]
    if failed:
        complain(f"every benchmark must run to its end; failed: {', '.join(failed)}. What each said is above.")
    return 1 if failed else 0


def run(line: str, output_dir: Path) -> str:
    """Run a benchmark with its options, in the environment where its peers are; return what became of it."""
    print(f"## {line}\n", flush=True)
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **os.environ}
    began = time.monotonic()
    name, *options = line.split()
    command = [interpreter(name), "-m", f"benchmarks.{name}", *options, "--output-dir", str(output_dir)]
    status = subprocess.run(command, env=environment).returncode
    minutes = (time.monotonic() - began) / 60
    outcome = f"failed with status {status}" if status else "done"
    print(f"\n{line}: {outcome} after {minutes:.1f} minutes\n", flush=True)
    return f"{outcome} after {minutes:.1f} minutes"


def interpreter(name: str) -> str:
    """Find the Python of a benchmark's own environment; this one where there is none."""
    own = Path(f"{sys.prefix}-{ENVIRONMENTS.get(name)}", "bin", "python")
    return str(own) if own.exists() else sys.executable


def index(folder: Path, outcomes: dict[str, str]) -> str:
    """Make a page with a line for each table in the folder, and what became of the benchmarks of this run."""
    links = []
    for path in sorted(folder.glob("*.json")):
        rows = len(json.loads(path.read_text(encoding="utf-8"))["rows"])
        name = escape(path.stem)
        links.append(f'<li><a href="{name}.html">{name}</a> (<a href="{name}.json">{rows} rows</a>)</li>')
    ran = "".join(f"<li>{escape(name)}: {escape(outcome)}</li>" for name, outcome in outcomes.items())
    lists = f"<ul>{''.join(links)}</ul><h2>This run</h2><ul>{ran}</ul>"
    return page("Benchmarks", f"<main><h1>Benchmarks</h1>{lists}</main>")


if __name__ == "__main__":
    run_command(main)
