"""python -m benchmarks.plan: padding, mixing of utterances, time and memory of the batch plan."""

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

from asr.core.cli.command import run_command
from asr.core.data.batch_plan import BatchBounds, BatchOrder, Plan, changed_mates, plan_training
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Columns, Results, fixed, share

ROOT = Path(__file__).resolve().parent.parent
TRAIN_MINI = ROOT.parent / "shared" / "data" / "LibriSpeech" / "train-mini"
NUM_DOMINANT_SPEAKERS = 3  # each has a hundred utterances; each other speaker has one or two


class PlanFigures(NamedTuple):
    """Cost and quality of a plan: the columns of the table after the first two."""

    seconds: float
    megabytes: float
    steps: int
    padding: float
    changed_mates: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per number of utterances and number of ranks."""
    data = yaml.safe_load((ROOT / "conf" / "train.yaml").read_text(encoding="utf-8"))["data"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument(
        "--utterances", type=int, nargs="+", default=[28_000, 1_000_000], metavar="N", help="numbers of utterances"
    )
    parser.add_argument("--world-size", type=int, nargs="+", default=[1, 8], metavar="N", help="numbers of ranks")
    parser.add_argument("--batch-seconds", type=float, default=200.0, metavar="S", help="padded seconds of a batch")
    parser.add_argument("--jitter", type=float, default=data["jitter"], metavar="BATCHES", help="data.jitter")
    parser.add_argument("--train-mini", type=Path, default=TRAIN_MINI, help="folder of <speaker>/<chapter>/*.flac")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    bounds = BatchBounds(options.batch_seconds, data["max_utterances"], data["max_squared_seconds"])
    print(f"batch_seconds={bounds.batch_seconds:g} max_utterances={bounds.max_utterances} jitter={options.jitter:g}")
    source = str(options.train_mini) if options.train_mini.is_dir() else "a log-normal distribution"
    print(f"durations from {source}\n")
    columns: Columns = {"utterances": str, "ranks": str, "seconds": fixed(2), "MB": fixed(0)}
    columns |= {"steps": fixed(0), "padding": percent, "mates changed": share}
    table = Results("plan", columns, bars="seconds", group_by=("ranks",))
    for count, world_size in itertools.product(options.utterances, options.world_size):
        figures = [
            in_fresh_process(measure, count, options.train_mini, bounds, options.jitter, world_size)
            for _ in range(options.turns)
        ]
        table.row(f"{count:,}", str(world_size), *map(statistics.median, zip(*figures, strict=True)))
    table.save(options.output_dir, facts)
    return 0


def percent(value: float) -> str:
    """Format a small fraction as a percentage with two decimal places."""
    return f"{value:.2%}"


def draw_durations(count: int, folder: Path, seed: int = 0) -> Tensor:
    """Draw `count` durations in seconds, (count,) float64, from the FLAC files of LibriSpeech's train-mini.

    Each of the three dominant speakers is weighted down to the mean of the others, as in a corpus of many speakers. If
    the folder is absent, durations are log-normal with a median of 12.5 s, clamped to 1.5 to 17 s.
    """
    generator = torch.Generator().manual_seed(seed)
    if not folder.is_dir():
        log_normal = 12.5 * (0.35 * torch.randn(count, generator=generator, dtype=torch.float64)).exp()
        return log_normal.clamp(1.5, 17.0)
    files = sorted(folder.rglob("*.flac"))
    speakers = [file.relative_to(folder).parts[0] for file in files]
    counts = Counter(speakers)
    ranked = counts.most_common()
    mean_count = sum(number for _, number in ranked[NUM_DOMINANT_SPEAKERS:]) / len(ranked[NUM_DOMINANT_SPEAKERS:])
    weight = dict.fromkeys(counts, 1.0) | {
        speaker: mean_count / number for speaker, number in ranked[:NUM_DOMINANT_SPEAKERS]
    }
    weights = torch.tensor([weight[speaker] for speaker in speakers], dtype=torch.float64)
    seconds = torch.tensor([soundfile.info(file).duration for file in files], dtype=torch.float64)
    indices = torch.multinomial(weights, count, replacement=True, generator=generator)
    return seconds[indices]


def measure(count: int, folder: Path, bounds: BatchBounds, jitter: float, world_size: int) -> PlanFigures:
    """Measure the plan of the first epoch, and the share of batch-mates that change in the second epoch."""
    durations, order = draw_durations(count, folder), BatchOrder(jitter, sorted_epochs=0)

    def plan(epoch: int) -> Plan:
        return plan_training(durations, bounds, order, seed=0, epoch=epoch, world_size=world_size)

    initial_bytes = peak_memory_reset()
    start = time.perf_counter()
    first = plan(0)
    seconds = time.perf_counter() - start
    megabytes = (peak_memory() - initial_bytes) / 1e6
    padded = first.longest(durations) * first.sizes()
    padding = 1 - float(durations.sum() / padded.sum())
    return PlanFigures(seconds, megabytes, len(first), padding, float(changed_mates(first, plan(1))))


if __name__ == "__main__":
    run_command(main)
