"""python -m benchmarks.plan: the batch plan's padding, change of mates, time and memory."""

import argparse
import math
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import soundfile
import torch
import yaml
from torch import Tensor

from asr.data.sampler import BatchBounds, Plan, changed_mates, plan_training

ROOT = Path(__file__).resolve().parent.parent
TRAIN_MINI = ROOT.parent / "shared" / "data" / "LibriSpeech" / "train-mini"
DOMINANT = 3  # speakers with a hundred utterances each; the others have one or two
HEADER = f"{'utterances':>10} {'ranks':>6} {'seconds':>8} {'MB':>6} {'steps':>7} {'padding':>8} {'mates changed':>14}"


def main() -> None:
    """Print a line for each number of utterances and of ranks."""
    data = yaml.safe_load((ROOT / "conf" / "train.yaml").read_text(encoding="utf-8"))["data"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--utterances", type=int, nargs="+", default=[28_000, 1_000_000])
    parser.add_argument("--world-size", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--batch-seconds", type=float, default=200.0)
    parser.add_argument("--jitter", type=float, default=data["jitter"])
    parser.add_argument("--train-mini", type=Path, default=TRAIN_MINI, help="a folder <speaker>/<chapter>/*.flac")
    given = parser.parse_args()
    bounds = BatchBounds(given.batch_seconds, data["max_utterances"], data["max_squared_seconds"])
    print(f"batch_seconds={bounds.batch_seconds:g} max_utterances={bounds.max_utterances} jitter={given.jitter:g}")
    print(f"durations: {'of ' + str(given.train_mini) if given.train_mini.is_dir() else 'a log-normal stand-in'}")
    print(HEADER)
    for count in given.utterances:
        for world_size in given.world_size:  # each in a fresh process, so that no freed memory is used again
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                line = fresh.submit(measure, count, given.train_mini, bounds, given.jitter, world_size)
                print(line.result(), flush=True)


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


def measure(count: int, folder: Path, bounds: BatchBounds, jitter: float, world_size: int) -> str:
    """Plan two epochs; return a line of the table."""
    durations = draw_durations(count, folder)

    def plan(epoch: int) -> Plan:
        return plan_training(durations, bounds, jitter=jitter, seed=0, epoch=epoch, world_size=world_size)

    before = reset_peak_memory()
    started = time.perf_counter()
    first = plan(0)
    seconds = time.perf_counter() - started
    megabytes = (peak_memory() - before) / 1e6
    padded = first.longest(durations) * first.sizes()
    padding = 1 - float(durations.sum() / padded.sum())
    figures = f"{seconds:8.2f} {megabytes:6.0f} {len(first):7d} {padding:8.2%} {changed_mates(first, plan(1)):14.1%}"
    return f"{len(durations):10d} {world_size:6d} {figures}"


def reset_peak_memory() -> float:
    """Forget the highest use of memory so far; return the present one, in bytes, or NaN where this is not Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return math.nan
    return peak_memory()


def peak_memory() -> float:
    """Return the highest resident memory since `reset_peak_memory`, in bytes, or NaN where this is not Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.is_file() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), math.nan)


if __name__ == "__main__":
    main()
