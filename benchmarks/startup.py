"""python -m benchmarks.startup: what commands take from a cold process, beside the imports that they cannot do without.

A program is timed until it has said what it was started for, and is then ended by force: for an import, that it is
done; for training, the line that is logged behind the first step. The corpus is there by then, and files have been
read before.
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

from asr.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about
from benchmarks.race import Contender, enter, race
from benchmarks.results import Results, fixed

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_RATE, SECONDS = 16000, 10  # of the file that is transcribed
TORCH, LIGHTNING = "import torch", "import lightning"
OURS = "import asr; asr.load_recognizer"
PEERS = (  # what their users begin with
    "from transformers import pipeline",
    "from speechbrain.inference.ASR import EncoderASR",
    "from espnet2.bin.asr_inference import Speech2Text",
    "import nemo.collections.asr",
)
FIRST_STEP = "step 1: "  # in the line that asr.train logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each program; all of them take turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--model", metavar="MODEL", help="that transcribes (one that is trained for a step)")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    with tempfile.TemporaryDirectory() as folder:
        programs = make_programs(given.model, Path(folder))
        contenders = enter({program.name: program.make for program in programs}, expected=(RuntimeError,))
        turns = race(contenders, turns=given.turns, warm_up=0)
    columns = {
        "from a cold process": str,
        "seconds": fixed(2),
        "CPU seconds": fixed(2),
        "floor": str,
        "seconds above it": fixed(2),
    }
    table = Results("startup", columns, bars="seconds")
    for name, _, floor in programs:
        if name in turns:
            above = turns[name].seconds - turns[floor].seconds if floor in turns else None
            table.row(name, *turns[name], floor, above)
    table.keep(given.output_dir, facts)
    return 0


class Program(NamedTuple):
    """What is started.

    Args:
        name: of its row.
        make: runs it once, so that its files have been read, and returns the contender.
        floor: the name of the import that it cannot do without.
    """

    name: str
    make: Callable[[], Contender]
    floor: str | None = None


def make_programs(model: str | None, folder: Path) -> list[Program]:
    """List the programs; what they read and write is in the folder."""
    audio = folder / "noise.flac"
    soundfile.write(audio, 0.1 * np.random.default_rng(0).standard_normal(SECONDS * SAMPLE_RATE), SAMPLE_RATE)

    def transcribing(line: str | None = None) -> Contender:
        command = ("-m", "asr.transcribe", model or trained_for_a_step(folder), str(audio))
        return once(partial(run, command, line))

    helpful = {f"asr.{command} --help": ("-m", f"asr.{command}", "--help") for command in ("transcribe", "train")}
    return [
        *(Program(one, partial(importing, one)) for one in (TORCH, LIGHTNING)),
        *(Program(one, partial(importing, one), TORCH) for one in (OURS, *PEERS)),
        *(Program(name, partial(once, partial(run, arguments))) for name, arguments in helpful.items()),
        Program("asr.transcribe, to the transcript", partial(transcribing, audio.name), TORCH),
        Program("asr.transcribe, to its end", transcribing),
        Program("asr.train, to its first step", partial(once, partial(first_step, folder)), LIGHTNING),
    ]


def importing(statement: str) -> Contender:
    """Make a contender of an import.

    Raises:
        ImportError: its package is not installed.
    """
    package = statement.split()[1].split(".")[0].strip(";")
    if find_spec(package) is None:
        raise ImportError(f"No module named {package!r}")
    return once(partial(run, ("-c", f"{statement}; print('imported', flush=True)"), "imported"))


def once(program: Contender) -> Contender:
    """Run a program before its turns."""
    program()
    return program


def run(arguments: Sequence[str], line: str | None = None) -> None:
    """Run a Python program until it prints a line with `line` in it; without, to its end.

    Raises:
        RuntimeError: it did not print it, or failed; with the last line it printed.
    """
    command, last = [sys.executable, *arguments], "it says nothing"
    plain = {**os.environ, "HYDRA_FULL_ERROR": "1"}  # else Hydra's last line is not the error
    with subprocess.Popen(
        command, cwd=ROOT, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for last in process.stdout or ():
            if line and line in last:
                process.kill()
                return
    if line or process.returncode:
        raise RuntimeError(last.strip())


def training(run_dir: Path) -> list[str]:
    """Give the arguments of a training of one step on the mini corpus."""
    return ["-m", "asr.train", f"run_dir={run_dir}", "trainer.max_steps=1"]


def first_step(folder: Path) -> None:
    """Train in a new folder until the first step is logged."""
    with tempfile.TemporaryDirectory(dir=folder) as run_dir:
        run(training(Path(run_dir)), FIRST_STEP)


def trained_for_a_step(folder: Path) -> str:
    """Train a model that can be used, but understands nothing; the mini corpus is made if it is not there."""
    if not (folder / "model" / "bundle").exists():
        run(training(folder / "model"))
    return str(folder / "model")


if __name__ == "__main__":
    run_command(main)
