"""python -m benchmarks.startup: start-up times of commands, compared with the imports that they need.

Each program starts in a new process. It is timed until it prints an expected line (the end of an import, the
transcript, or the log line of the first training step), and is then killed. Before the timed runs, each program
runs once, so that its files are in the page cache and the corpus exists.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile

from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about
from benchmarks.race import Contender, enter, race
from benchmarks.results import Columns, Results, fixed

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_RATE, SECONDS = 16000, 10  # of the transcribed recording
TORCH, LIGHTNING = "import torch", "import lightning"
OURS = "import asr; asr.load_recognizer"
PEERS = (  # the first import statement that the documentation of each other toolkit shows
    "from transformers import pipeline",
    "from speechbrain.inference.ASR import EncoderASR",
    "from espnet2.bin.asr_inference import Speech2Text",
    "import nemo.collections.asr",
)
FIRST_STEP = "step 1: "  # asr.train logs it after the first optimizer step


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per program; the programs take turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument(
        "--model", metavar="MODEL", help="model for asr.transcribe (default: a model trained for one step)"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    with tempfile.TemporaryDirectory() as folder:
        programs = make_programs(options.model, Path(folder))
        contenders = enter({program.name: program.make for program in programs}, expected=(RuntimeError,))
        turns = race(contenders, turns=options.turns, warm_up=0)
    columns: Columns = {
        "program": str,
        "seconds": fixed(2),
        "CPU seconds": fixed(2),
        "baseline import": str,
        "seconds above baseline": fixed(2),
    }
    table = Results("startup", columns, bars="seconds")
    for name, _, baseline in programs:
        if name in turns:
            difference = turns[name].seconds - turns[baseline].seconds if baseline in turns else None
            table.row(name, *turns[name], baseline, difference)
    table.save(options.output_dir, facts)
    return 0


class Program(NamedTuple):
    """A program that is timed.

    Args:
        name: name of its row.
        make: runs the program once as a warm-up, and returns the contender.
        baseline: name of the import that the program cannot avoid; None: it has none.
    """

    name: str
    make: Callable[[], Contender]
    baseline: str | None = None


def make_programs(model: str | None, folder: Path) -> list[Program]:
    """List the programs; they read and write files in `folder`."""
    audio = folder / "noise.flac"
    soundfile.write(audio, 0.1 * np.random.default_rng(0).standard_normal(SECONDS * SAMPLE_RATE), SAMPLE_RATE)

    def make_transcription(line: str | None = None) -> Contender:
        command = ("-m", "asr.transcribe", model or train_one_step(folder), str(audio))
        return warmed_up(partial(run, command, line))

    help_arguments = {
        f"asr.{command} --help": ("-m", f"asr.{command}", "--help") for command in ("transcribe", "train")
    }
    return [
        *(Program(statement, partial(make_import, statement)) for statement in (TORCH, LIGHTNING)),
        *(Program(statement, partial(make_import, statement), TORCH) for statement in (OURS, *PEERS)),
        *(Program(name, partial(warmed_up, partial(run, arguments))) for name, arguments in help_arguments.items()),
        Program("asr.transcribe, to the transcript", partial(make_transcription, audio.name), TORCH),
        Program("asr.transcribe, to its end", make_transcription),
        Program("asr.train, to its first step", partial(warmed_up, partial(train_first_step, folder)), LIGHTNING),
    ]


def make_import(statement: str) -> Contender:
    """Return a contender that runs an import statement in a new process.

    Raises:
        ImportError: the package is not installed.
    """
    package = statement.split()[1].split(".")[0].strip(";")
    if find_spec(package) is None:
        raise ImportError(f"No module named {package!r}")
    return warmed_up(partial(run, ("-c", f"{statement}; print('imported', flush=True)"), "imported"))


def warmed_up(program: Contender) -> Contender:
    """Run a program once, before its timed turns, and return it."""
    program()
    return program


def run(arguments: Sequence[str], line: str | None = None) -> None:
    """Run a Python program until it prints a line that contains `line`; without `line`, to its end.

    Raises:
        RuntimeError: the program did not print `line`, or failed; the message is its last line of output.
    """
    command, last_line = [sys.executable, *arguments], "the program printed nothing"
    environment = {**os.environ, "HYDRA_FULL_ERROR": "1"}  # otherwise Hydra's last line is not the error
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for last_line in process.stdout or ():
            if line and line in last_line:
                process.kill()
                return
    if line or process.returncode:
        raise RuntimeError(last_line.strip())


def training_arguments(run_dir: Path) -> list[str]:
    """Return the Python arguments that train one step on the mini corpus."""
    return ["-m", "asr.train", f"run_dir={run_dir}", "trainer.max_steps=1"]


def train_first_step(folder: Path) -> None:
    """Start training in a new run folder, and stop it once the first step is logged."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        run(training_arguments(Path(run_dir)), FIRST_STEP)


def train_one_step(folder: Path) -> str:
    """Train a model for one step, which makes the mini corpus if it is absent; return the run folder."""
    if not (folder / "model" / "bundle").exists():
        run(training_arguments(folder / "model"))
    return str(folder / "model")


if __name__ == "__main__":
    run_command(main)
