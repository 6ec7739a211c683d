"""python -m benchmarks.remote: batches a second from shards behind a network with latency, beside local files.

The store is a range server of this benchmark: it answers each request after a delay, from a process of its own.
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

from asr.build import build_augmentation, build_features
from asr.cli.command import run_command
from asr.data.batch import collate
from asr.data.batch_plan import BatchSampler
from asr.data.dataset import SpeechDataset
from asr.data.index_cache import IndexCache
from asr.data.manifest import Utterance, write_manifest
from asr.data.shard_writer import ShardSettings, ShardWriter
from asr.settings.conf import default_settings
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results, fixed, share

SAMPLE_RATE = 16_000
SECONDS = (4.0, 16.0)  # of an utterance
SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each place that the audio is in."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--utterances", type=int, default=400, metavar="N")
    parser.add_argument("--batch", type=int, default=20, metavar="N", help="utterances in a batch")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], metavar="N", help="loading processes")
    parser.add_argument("--latency-ms", type=float, default=50.0, metavar="MS", help="before each answer")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    columns = {"workers": str, "audio in": str, "utterances/s": fixed(1), "of local files": share}
    table = Results("remote", columns, bars="utterances/s", within=("workers",))
    folder = given.output_dir / "remote"
    try:
        manifest = write_corpus(folder, given.utterances)
        cache = IndexCache(folder / "cache")
        writer = ShardWriter(str(folder / "shards"), "train", ShardSettings(megabytes=10.0), "benchmark")
        writer.write(cache.utterances(manifest), lambda done: None)
        with range_server(folder / "shards", given.latency_ms) as address:
            places = {"local files": manifest, "local shards": folder / "shards/index.arrow"}
            places |= {f"shards, {given.latency_ms:g} ms away": f"{address}/index.arrow"}
            for workers in given.workers:
                rates: dict[str, list[float]] = {place: [] for place in places}
                for turn in range(given.turns):
                    for place, path in places.items():
                        rates[place].append(measure(cache, path, given.batch, workers, turn))
                local = statistics.median(rates["local files"])
                for place, turns in rates.items():
                    table.row(str(workers), place, statistics.median(turns), statistics.median(turns) / local)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table.keep(given.output_dir, facts)
    return 0


def write_corpus(folder: Path, number: int) -> Path:
    """Write utterances of noise as FLAC files, and their manifest."""
    draw = np.random.default_rng(SEED)
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    utterances = []
    for place in range(number):
        samples = 0.1 * draw.standard_normal(int(draw.uniform(*SECONDS) * SAMPLE_RATE))
        path = folder / "audio" / f"{place}.flac"
        soundfile.write(path, samples, SAMPLE_RATE)
        utterances.append(Utterance(str(path), len(samples) / SAMPLE_RATE, "noise", str(place)))
    write_manifest(folder / "train.jsonl", utterances)
    return folder / "train.jsonl"


def measure(cache: IndexCache, path: str | Path, batch: int, workers: int, turn: int) -> float:
    """Load all utterances once, augmented and with features, in random order; return utterances a second."""
    utterances = cache.utterances(path)
    features = build_features({"features": default_settings("features", "fbank")})
    names = ("speed_perturb", "spec_augment")
    augment = {name: default_settings("augment", name) for name in names}
    dataset = SpeechDataset(utterances, features, None, build_augmentation({"augment": augment}, SAMPLE_RATE))
    order = torch.randperm(len(utterances), generator=torch.Generator().manual_seed(turn))
    sampler = BatchSampler([part.tolist() for part in order.split(batch)])
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=collate)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)  # workers have started
    begun = time.perf_counter()
    loaded = sum(len(each) for each in batches)
    return loaded / (time.perf_counter() - begun)


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
