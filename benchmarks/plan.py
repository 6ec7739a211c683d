"""python -m benchmarks.plan: the batch plan's padding, change of mates, time and memory."""

import argparse
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import soundfile
import torch
import yaml
from torch import Tensor

from asr.cli.command import run_command
from asr.data.batch_plan import BatchBounds, BatchOrder, Plan, changed_mates, plan_training
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Results, fixed, share

ROOT = Path(__file__).resolve().parent.parent
TRAIN_MINI = ROOT.parent / "shared" / "data" / "LibriSpeech" / "train-mini"
DOMINANT = 3  # speakers with a hundred utterances each; the others have one or two


class Measured(NamedTuple):
    """What a plan took, and what it is worth: the columns of the table behind the first two."""

    seconds: float
    megabytes: float
    steps: int
    padding: float
    changed_mates: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each number of utterances and of ranks."""
    data = yaml.safe_load((ROOT / "conf" / "train.yaml").read_text(encoding="utf-8"))["data"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--utterances", type=int, nargs="+", default=[28_000, 1_000_000], metavar="N")
    parser.add_argument("--world-size", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--batch-seconds", type=float, default=200.0, metavar="S")
    parser.add_argument("--jitter", type=float, default=data["jitter"], metavar="BATCHES")
    parser.add_argument("--train-mini", type=Path, default=TRAIN_MINI, help="a folder <speaker>/<chapter>/*.flac")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    bounds = BatchBounds(given.batch_seconds, data["max_utterances"], data["max_squared_seconds"])
    print(f"batch_seconds={bounds.batch_seconds:g} max_utterances={bounds.max_utterances} jitter={given.jitter:g}")
    print(f"durations: {'of ' + str(given.train_mini) if given.train_mini.is_dir() else 'a log-normal stand-in'}\n")
    columns = {"utterances": str, "ranks": str, "seconds": fixed(2), "MB": fixed(0)}
    columns |= {"steps": fixed(0), "padding": percent, "mates changed": share}
    table = Results("plan", columns, bars="seconds", within=("ranks",))
    for count, world_size in itertools.product(given.utterances, given.world_size):
        measured = [
            in_fresh_process(measure, count, given.train_mini, bounds, given.jitter, world_size)
            for _ in range(given.turns)
        ]
        table.row(f"{count:,}", str(world_size), *map(statistics.median, zip(*measured, strict=True)))
    table.keep(given.output_dir, facts)
    return 0


def percent(value: float) -> str:
    """Write a small fraction as a percentage."""
    return f"{value:.2%}"


def draw_durations(count: int, folder: Path, seed: int = 0) -> Tensor:
    """Draw seconds, (count,) float64, from the FLAC files of LibriSpeech's train-mini.

    Each of its three dominant speakers weighs as much as the mean of the others, as in a corpus of many speakers.
    Where the folder is absent, a log-normal of a median of 12.5 s, cut to 1.5 to 17 s, stands in.
    """
    generator = torch.Generator().manual_seed(seed)
    if not folder.is_dir():
        drawn = 12.5 * (0.35 * torch.randn(count, generator=generator, dtype=torch.float64)).exp()
        return drawn.clamp(1.5, 17.0)
    files = sorted(folder.rglob("*.flac"))
    speakers = [file.relative_to(folder).parts[0] for file in files]
    counts = Counter(speakers)
    ranked = counts.most_common()
    typical = sum(number for _, number in ranked[DOMINANT:]) / len(ranked[DOMINANT:])
    weight = dict.fromkeys(counts, 1.0) | {speaker: typical / number for speaker, number in ranked[:DOMINANT]}
    weights = torch.tensor([weight[speaker] for speaker in speakers], dtype=torch.float64)
    seconds = torch.tensor([soundfile.info(file).duration for file in files], dtype=torch.float64)
    chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
    return seconds[chosen]


def measure(count: int, folder: Path, bounds: BatchBounds, jitter: float, world_size: int) -> Measured:
    """Plan two epochs, of which the first is timed."""
    durations, order = draw_durations(count, folder), BatchOrder(jitter, sorted_epochs=0)

    def plan(epoch: int) -> Plan:
        return plan_training(durations, bounds, order, seed=0, epoch=epoch, world_size=world_size)

    before = peak_memory_reset()
    started = time.perf_counter()
    first = plan(0)
    seconds = time.perf_counter() - started
    megabytes = (peak_memory() - before) / 1e6
    padded = first.longest(durations) * first.sizes()
    padding = 1 - float(durations.sum() / padded.sum())
    return Measured(seconds, megabytes, len(first), padding, float(changed_mates(first, plan(1))))


if __name__ == "__main__":
    run_command(main)
