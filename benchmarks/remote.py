"""python -m benchmarks.remote: loading speed from shards at a server with latency, compared with local files.

The server is benchmarks.remote_server in a process of its own: it serves byte ranges, and delays each response.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch.utils.data import DataLoader

from asr.apps.shards.writer import ShardSettings, ShardWriter
from asr.base.settings.conf import default_settings
from asr.base.system.processes import start_method
from asr.core.build import build_augmentation, build_features
from asr.core.cli.command import run_command
from asr.core.data.batch import collate
from asr.core.data.batch_plan import BatchSampler
from asr.core.data.dataset import SpeechDataset
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, write_manifest
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed, share

SAMPLE_RATE = 16_000
SECONDS = (4.0, 16.0)  # shortest and longest utterance
SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per number of workers and location of the audio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--utterances", type=int, default=400, metavar="N", help="utterances in the corpus")
    parser.add_argument("--batch", type=int, default=20, metavar="N", help="utterances in a batch")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 4], metavar="N", help="numbers of loader processes"
    )
    parser.add_argument("--latency-ms", type=float, default=50.0, metavar="MS", help="delay before each response")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    columns: Columns = {"workers": str, "audio in": str, "utterances/s": fixed(1), "of local files": share}
    table = Results("remote", columns, bars="utterances/s", group_by=("workers",))
    folder = options.output_dir / "remote"
    try:
        manifest = write_corpus(folder, options.utterances)
        cache = IndexCache(folder / "cache")
        writer = ShardWriter(str(folder / "shards"), "train", ShardSettings(megabytes=10.0), "benchmark")
        writer.write(cache.utterances(manifest), lambda done: None)
        with range_server(folder / "shards", options.latency_ms) as address:
            locations = {"local files": manifest, "local shards": folder / "shards/index.arrow"}
            locations |= {f"shards, {options.latency_ms:g} ms away": f"{address}/index.arrow"}
            for workers in options.workers:
                rates: dict[str, list[float]] = {location: [] for location in locations}
                for turn in range(options.turns):
                    for location, path in locations.items():
                        rates[location].append(measure(cache, path, options.batch, workers, turn))
                local = statistics.median(rates["local files"])
                for location, turns in rates.items():
                    table.row(str(workers), location, statistics.median(turns), statistics.median(turns) / local)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table.save(options.output_dir, facts)
    return 0


def write_corpus(folder: Path, number: int) -> Path:
    """Write `number` utterances of noise as FLAC files, and their manifest; return the manifest's path."""
    draw = np.random.default_rng(SEED)
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    utterances = []
    for index in range(number):
        samples = 0.1 * draw.standard_normal(int(draw.uniform(*SECONDS) * SAMPLE_RATE))
        path = folder / "audio" / f"{index}.flac"
        soundfile.write(path, samples, SAMPLE_RATE)
        utterances.append(Utterance(str(path), len(samples) / SAMPLE_RATE, "noise", str(index)))
    write_manifest(folder / "train.jsonl", utterances)
    return folder / "train.jsonl"


def measure(cache: IndexCache, path: str | Path, batch: int, workers: int, turn: int) -> float:
    """Load all utterances once in random order, with augmentation and features; return utterances per second."""
    utterances = cache.utterances(path)
    features = build_features({"features": default_settings("features", "fbank")})
    names = ("speed_perturb", "spec_augment")
    augment = {name: default_settings("augment", name) for name in names}
    dataset = SpeechDataset(utterances, features, None, build_augmentation({"augment": augment}, SAMPLE_RATE))
    order = torch.randperm(len(utterances), generator=torch.Generator().manual_seed(turn))
    sampler = BatchSampler([part.tolist() for part in order.split(batch)])
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        multiprocessing_context=start_method(workers),
        collate_fn=collate,
    )
    batches = iter(loader)
    next(batches)  # waits until the workers have started
    start = time.perf_counter()
    num_loaded = sum(len(loaded) for loaded in batches)
    return num_loaded / (time.perf_counter() - start)


@contextmanager
def range_server(folder: Path, latency_ms: float) -> Iterator[str]:
    """Serve a folder's files by byte ranges from another process; yield its address."""
    command = [sys.executable, "-m", "benchmarks.remote_server", str(folder), str(latency_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    run_command(main)
