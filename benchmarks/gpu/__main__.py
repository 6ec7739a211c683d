"""python -m benchmarks.gpu: everything that is worth measuring on a GPU, most valuable first, against the goals.

Each step runs in a process of its own with a time limit, and writes its results and its log into a folder of its own.
A step that fails does not stop the next one. After each step gpu.md and gpu.json hold all results so far, those of
earlier commands with the same folder included: no other file must be copied from the machine. With --device cpu the
sizes are tiny: this shows that the program runs, and its figures mean nothing.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from asr.cli.command import complain, run_command
from asr.errors import InputError
from asr.system.files import write_whole_text
from benchmarks.gpu.processes import DONE, run
from benchmarks.gpu.report import OUTCOME, write_report
from benchmarks.gpu.steps import Step, steps_of
from benchmarks.machine import about

MIN_SECONDS = 20.0  # a step is not begun with less


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; the status is 1 if one has failed, was stopped, or had no time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=12.0, metavar="M", help="for all steps (12)")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/gpu_benchmarks"), metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes, to try the program")
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="only these; others keep their results in DIR")
    parser.add_argument("--models", nargs="*", default=[], metavar="MODEL", help="to recognise with (random weights)")
    parser.add_argument("--audio", nargs="*", default=[], metavar="AUDIO", help="that they recognise (noise)")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device must be there; got cuda, and no CUDA device is here. Take cpu.")
    steps = steps_of(given.device, given.device == "cpu", given.models, given.audio)
    if unknown := [name for name in given.steps or () if name not in steps]:
        raise InputError(f"--steps must name steps; got {', '.join(unknown)}. There are {', '.join(steps)}.")
    facts = about(given)
    if given.device == "cuda":
        facts["name"] = torch.cuda.get_device_name()
    end = time.monotonic() + 60 * given.minutes
    incomplete = []
    for name, step in steps.items():
        if given.steps and name not in given.steps:
            continue
        outcome = take(name, step, given.output_dir / name, end - time.monotonic(), given.device)
        if outcome != DONE:
            incomplete.append(f"{name} ({outcome})")
        write_report(given.output_dir, facts, steps)
    print(given.output_dir / "gpu.md")
    if incomplete:
        complain(
            f"every step must run to its end; these did not: {', '.join(incomplete)}. Each step's folder has its log."
        )
    return 1 if incomplete else 0


def take(name: str, step: Step, folder: Path, seconds: float, device: str) -> str:
    """Run a step; write down and return what became of it."""
    if seconds < MIN_SECONDS:
        print(f"{name}: no time is left", flush=True)
        return "no time was left"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / step.result).unlink(missing_ok=True)
    print(f"{name}: {step.what}, up to {min(step.minutes, seconds / 60):.1f} minutes", flush=True)
    began = time.monotonic()
    outcome = run(step, folder, min(60 * step.minutes, seconds), device)
    taken = time.monotonic() - began
    print(f"{name}: {outcome} after {taken:.0f} s", flush=True)
    write_whole_text(folder / OUTCOME, json.dumps({"what": step.what, "outcome": outcome, "seconds": taken}))
    return outcome


if __name__ == "__main__":
    run_command(main)
