"""python -m benchmarks.gpu: run all GPU measurements, the most important first, and compare them with the goals.

There are four parts: right (results equal those of a CPU), trained (speech from nothing, with --audio), fast, and rest.
Each has its share of the time, and what a part leaves over is shared by the later parts. A part consists of steps, each
in a process of its own, which is killed at its time limit; if it hangs or crashes, or memory runs out, the next step
still runs. After each step, gpu.md and gpu.json contain all results so far, including those of earlier commands with
the same --output-dir, so these two files are all that must be copied from the machine.
With --device cpu the sizes of all parts but `trained` are tiny: they only check that the program runs.

Without a GPU, it prints the kernel launches, waits and memory of training steps (`benchmarks.gpu.launches`).
"""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from asr.base.system.files import write_whole_text
from asr.core.cli.command import complain, run_command
from asr.errors import InputError
from benchmarks.gpu import launches
from benchmarks.gpu.processes import DONE, run
from benchmarks.gpu.report import OUTCOME, write_report
from benchmarks.gpu.steps import FAST, REST, RIGHT, TRAINED, Part, Step, parts_of, steps_of
from benchmarks.machine import about, check_available

MIN_SECONDS = 5.0  # time that must be left to start a step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return 1 if any of their steps failed, was stopped, or could not start, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=9.0, metavar="M", help="time limit of all parts together (default: 9)"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/gpu_benchmarks"), metavar="DIR", help="folder of results"
    )
    parser.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="folder of gpu.md and gpu.json (default: that of all results)"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        help="default: cuda, if there is one; cpu: only `trained` is not tiny",
    )
    parser.add_argument("--tiny", action="store_true", help="with --device cpu: `trained` has a tiny size, too")
    names = (RIGHT, TRAINED, FAST, REST)
    parser.add_argument(
        "--parts", nargs="+", choices=names, default=names, metavar="PART", help=f"from {', '.join(names)}"
    )
    parser.add_argument(
        "--steps", nargs="+", metavar="NAME", help="steps to run; earlier results of other steps stay in DIR"
    )
    parser.add_argument(
        "--audio", type=Path, metavar="FOLDER", help="speech for `trained`, as benchmarks.gpu.pack writes it"
    )
    parser.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of `trained`")
    options = parser.parse_args(arguments)
    if options.device is None and not torch.cuda.is_available():
        return launches.main(["--output-dir", str(options.output_dir)])
    options.device = options.device or "cuda"
    check_available(options.device)
    if options.tiny and options.device != "cpu":
        raise InputError("--tiny needs --device cpu; got cuda. Leave it out.")
    parts = parts_of(options.device, options.audio, options.tiny, options.overrides)
    steps = steps_of(parts)
    if unknown := [name for name in options.steps or () if name not in steps]:
        raise InputError(f"--steps must be names of steps; got {', '.join(unknown)}. Choose from {', '.join(steps)}.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # kills the steps, too
    facts = about(options)
    if options.device == "cuda":
        facts["name"] = torch.cuda.get_device_name()
    command = shlex.join(["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)])
    report_dir, outcomes = options.report_dir or options.output_dir, {}
    for name, outcome in run_parts(chosen(parts, options), options.output_dir, 60 * options.minutes):
        outcomes[name] = outcome
        write_report(report_dir, options.output_dir, facts, command, steps)
    print(report_dir / "gpu.md")
    if incomplete := [f"{name} ({outcome})" for name, outcome in outcomes.items() if outcome != DONE]:
        complain(
            f"every step must finish; these did not: {', '.join(incomplete)}. The folder of each step has its log."
        )
        return 1
    return 0


def chosen(parts: Mapping[str, Part], options: argparse.Namespace) -> dict[str, Part]:
    """Return the parts and steps that --parts and --steps select."""
    selected = {}
    for name, part in parts.items():
        steps = {step: part.steps[step] for step in part.steps if not options.steps or step in options.steps}
        if name in options.parts and steps:
            selected[name] = part._replace(steps=steps)
    return selected


def run_parts(parts: Mapping[str, Part], output_dir: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Run parts within `seconds`; save and yield the outcome of each step as it ends.

    A part, and a step within a part, gets its share of the time that is left, relative to the shares of those after it.
    """
    end = time.monotonic() + seconds
    remaining = sum(part.share for part in parts.values())
    for name, part in parts.items():
        limit = (end - time.monotonic()) * part.share / remaining
        remaining -= part.share
        print(f"{name}: at most {limit:.0f} s", flush=True)
        part_end = time.monotonic() + limit
        groups = [part.steps] if part.together else [{name: step} for name, step in part.steps.items()]
        shares = [max(step.share for step in group.values()) for group in groups]
        for number, group in enumerate(groups):
            left = (part_end - time.monotonic()) * shares[number] / sum(shares[number:])
            yield from run_steps(group, output_dir, left)


def run_steps(steps: Mapping[str, Step], output_dir: Path, seconds: float) -> Iterator[tuple[str, str]]:
    """Run steps at the same time, with a time limit; save and yield their outcomes."""
    if seconds <= MIN_SECONDS:
        for name in steps:
            print(f"  {name}: not started, because no time is left", flush=True)
            yield name, "no time was left"
        return
    for name, step in steps.items():
        (output_dir / name).mkdir(parents=True, exist_ok=True)
        (output_dir / name / step.result).unlink(missing_ok=True)
        print(f"  {name}: {step.description}, at most {seconds:.0f} s", flush=True)
    for name, outcome, duration in run(steps, output_dir, seconds):
        print(f"  {name}: {outcome} after {duration:.0f} s", flush=True)
        content = {"description": steps[name].description, "outcome": outcome, "seconds": duration}
        write_whole_text(output_dir / name / OUTCOME, json.dumps(content))
        yield name, outcome


if __name__ == "__main__":
    run_command(main)
