"""python -m benchmarks.gpu: run all GPU measurements, the most important first, and compare them with the goals.

Each step runs in a process of its own with a time limit, and writes its results and its log to a folder of its own.
If a step fails, the next step still runs. After each step, gpu.md and gpu.json contain all results so far, including
those of earlier commands with the same --output-dir, so these two files are all that must be copied from the machine.
With --device cpu the sizes are tiny: this only checks that the program runs, and the figures are meaningless.

Without a GPU, it prints the kernel launches, waits and memory of training steps (`benchmarks.gpu.launches`).
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from asr.base.system.files import write_whole_text
from asr.core.cli.command import complain, run_command
from asr.errors import InputError
from benchmarks.gpu import launches
from benchmarks.gpu.processes import DONE, run
from benchmarks.gpu.report import OUTCOME, write_report
from benchmarks.gpu.steps import Step, steps_of
from benchmarks.machine import about

MIN_SECONDS = 20.0  # time that must be left to start a step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if any of them failed, was stopped, or could not start, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=12.0, metavar="M", help="time limit of all steps together (default: 12)"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/gpu_benchmarks"), metavar="DIR", help="folder of results"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda, if there is one; cpu: tiny sizes, to test the program"
    )
    parser.add_argument(
        "--steps", nargs="+", metavar="NAME", help="steps to run; earlier results of other steps stay in DIR"
    )
    parser.add_argument(
        "--models", nargs="*", default=[], metavar="MODEL", help="models for recognition (default: random weights)"
    )
    parser.add_argument("--audio", nargs="*", default=[], metavar="AUDIO", help="audio to recognise (default: noise)")
    options = parser.parse_args(arguments)
    if options.device is None and not torch.cuda.is_available():
        return launches.main(["--output-dir", str(options.output_dir)])
    options.device = options.device or "cuda"
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device must be available; got cuda, but this machine has no CUDA device. Use cpu.")
    steps = steps_of(options.device, options.device == "cpu", options.models, options.audio)
    if unknown := [name for name in options.steps or () if name not in steps]:
        raise InputError(f"--steps must be names of steps; got {', '.join(unknown)}. Choose from {', '.join(steps)}.")
    facts = about(options)
    if options.device == "cuda":
        facts["name"] = torch.cuda.get_device_name()
    end = time.monotonic() + 60 * options.minutes
    incomplete = []
    for name, step in steps.items():
        if options.steps and name not in options.steps:
            continue
        outcome = run_step(name, step, options.output_dir / name, end - time.monotonic(), options.device)
        if outcome != DONE:
            incomplete.append(f"{name} ({outcome})")
        write_report(options.output_dir, facts, steps)
    print(options.output_dir / "gpu.md")
    if incomplete:
        complain(
            f"every step must finish; these did not: {', '.join(incomplete)}. The folder of each step has its log."
        )
    return 1 if incomplete else 0


def run_step(name: str, step: Step, folder: Path, seconds: float, device: str) -> str:
    """Run a step with a time limit; save and return its outcome."""
    if seconds < MIN_SECONDS:
        print(f"{name}: not started, because no time is left", flush=True)
        return "no time was left"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / step.result).unlink(missing_ok=True)
    print(f"{name}: {step.description}, at most {min(step.minutes, seconds / 60):.1f} minutes", flush=True)
    start = time.monotonic()
    outcome = run(step, folder, min(60 * step.minutes, seconds), device)
    duration = time.monotonic() - start
    print(f"{name}: {outcome} after {duration:.0f} s", flush=True)
    content = {"description": step.description, "outcome": outcome, "seconds": duration}
    write_whole_text(folder / OUTCOME, json.dumps(content))
    return outcome


if __name__ == "__main__":
    run_command(main)
