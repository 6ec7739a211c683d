"""python -m benchmarks.remote_peers: compare readers of shards at a server with latency.

asr, WebDataset, lhotse Shar and datasets read equal FLAC audio from benchmarks.remote_server, each from shards in its
own format. All compute features with asr's front-end and pad them to batches. asr reads utterances in random order by
byte ranges; the others read shards in order. Each contender runs in one process without loader processes; its CPU time
includes that of its child processes. Contenders take turns.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import soundfile
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.apps.shards.writer import ShardSettings, ShardWriter
from asr.base.audio.load import load_waveform
from asr.base.settings.conf import default_settings
from asr.core.build import build_features
from asr.core.cli.command import run_command
from asr.core.data.dataset import fetch
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import read_manifest
from benchmarks import results
from benchmarks.machine import about
from benchmarks.remote import SAMPLE_RATE, range_server, write_corpus
from benchmarks.results import Columns, Results, fixed

BATCH = 20  # utterances in a batch
SHARD_MEGABYTES = 10.0
SHARD_UTTERANCES = 30  # utterances in a shard of lhotse and datasets, about SHARD_MEGABYTES


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per installed reader."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote_peers", description=__doc__)
    parser.add_argument("--utterances", type=int, default=200, metavar="N", help="utterances in the corpus")
    parser.add_argument("--latency-ms", type=float, default=50.0, metavar="MS", help="delay before each response")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    results.add_options(parser)
    options = parser.parse_args(arguments)
    folder = options.output_dir / "remote_peers"
    if options.contender:
        print(json.dumps(read_all(CONTENDERS[options.contender].read(folder, options.address))))
        return 0
    facts = about(options)
    columns: Columns = {"reader": str, "order": str, "CPU s/audio hour": fixed(1), "s/audio hour": fixed(1)}
    table = Results("remote_peers", columns, bars="CPU s/audio hour")
    try:
        manifest = write_corpus(folder, options.utterances)
        installed = {
            name: contender for name, contender in CONTENDERS.items() if all(map(find_spec, contender.packages))
        }
        for contender in installed.values():
            contender.write(folder, manifest)
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in installed}
        with range_server(folder, options.latency_ms) as address:
            for _, name in itertools.product(range(options.turns), installed):
                costs[name].append(_measure(name, address, options.utterances, options.output_dir))
        for name, turns in costs.items():
            table.row(name, installed[name].order, *(statistics.median(values) for values in zip(*turns, strict=True)))
        for name in CONTENDERS.keys() - installed.keys():
            print(f"{name}: not installed")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table.save(options.output_dir, facts)
    return 0


def _measure(name: str, address: str, utterances: int, output_dir: Path) -> tuple[float, float]:
    """Read all audio in a fresh process; return its CPU seconds and wall-clock seconds per hour of audio."""
    arguments = ["--contender", name, "--address", address, "--output-dir", str(output_dir)]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.remote_peers", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cpu_seconds, wall_seconds, seconds, number = json.loads(process.stdout.splitlines()[-1])
    assert number == utterances, f"{name} read {number} utterances instead of {utterances}"
    return 3600 * cpu_seconds / seconds, 3600 * wall_seconds / seconds


def read_all(waveforms: Iterator[Tensor]) -> tuple[float, float, float, int]:
    """Read all batches and compute their features.

    Returns:
        CPU seconds, wall-clock seconds and audio seconds after the first batch; number of all utterances.
    """
    torch.set_num_threads(1)
    features = build_features({"features": default_settings("features", "fbank")})
    cpu_start, wall_start, seconds, number = 0.0, 0.0, 0.0, 0
    while batch := list(itertools.islice(waveforms, BATCH)):
        pad_sequence([features(waveform) for waveform in batch], batch_first=True)
        seconds += sum(map(len, batch)) / SAMPLE_RATE if number else 0.0
        if not number:
            cpu_start, wall_start = _cpu_seconds(), time.perf_counter()
        number += len(batch)
    return _cpu_seconds() - cpu_start, time.perf_counter() - wall_start, seconds, number


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children, both finished and running."""
    total = sum(os.times()[:4])
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def write_asr(folder: Path, manifest: Path) -> None:
    """Write shards as asr.shards does; WebDataset reads them as well."""
    writer = ShardWriter(str(folder / "shards"), "train", ShardSettings(megabytes=SHARD_MEGABYTES), "benchmark")
    writer.write(IndexCache(folder / "cache").utterances(manifest), lambda done: None)


def write_nothing(folder: Path, manifest: Path) -> None:
    """Write nothing, because WebDataset reads asr's shards."""


def write_shar(folder: Path, manifest: Path) -> None:
    """Write lhotse Shar shards."""
    from lhotse import CutSet, Recording

    cuts = CutSet.from_cuts(Recording.from_file(line.audio_filepath).to_cut() for line in read_manifest(manifest))
    (folder / "shar").mkdir()
    cuts.to_shar(str(folder / "shar"), fields={"recording": "flac"}, shard_size=SHARD_UTTERANCES)


def write_parquet(folder: Path, manifest: Path) -> None:
    """Write Parquet files with datasets."""
    from datasets import Dataset

    rows = [{"audio": Path(line.audio_filepath).read_bytes(), "text": line.text} for line in read_manifest(manifest)]
    (folder / "parquet").mkdir()
    for number, first in enumerate(range(0, len(rows), SHARD_UTTERANCES)):
        shard = Dataset.from_list(rows[first : first + SHARD_UTTERANCES])
        shard.to_parquet(str(folder / "parquet" / f"{number:03}.parquet"))


def read_asr(folder: Path, address: str) -> Iterator[Tensor]:
    """Read batches by byte ranges in random order."""
    utterances = IndexCache(folder / "cache").utterances(f"{address}/shards/index.arrow")
    order = torch.randperm(len(utterances), generator=torch.Generator().manual_seed(0)).tolist()
    for first in range(0, len(order), BATCH):
        for utterance in fetch([utterances[number] for number in order[first : first + BATCH]]):
            yield load_waveform(utterance.audio_filepath, SAMPLE_RATE, content=utterance.content)


def read_webdataset(folder: Path, address: str) -> Iterator[Tensor]:
    """Read asr's shards with WebDataset, which starts curl for each shard."""
    import webdataset

    urls = [f"{address}/shards/{path.name}" for path in sorted((folder / "shards").glob("*.tar"))]
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        yield _decode(sample["flac"])


def read_shar(folder: Path, address: str) -> Iterator[Tensor]:
    """Read Shar shards with lhotse."""
    from lhotse import CutSet

    patterns = {"cuts": "cuts.*", "recording": "recording.*"}
    fields = {
        field: [f"{address}/shar/{path.name}" for path in sorted((folder / "shar").glob(pattern))]
        for field, pattern in patterns.items()
    }
    for cut in CutSet.from_shar(fields=fields):
        yield torch.from_numpy(cut.load_audio()[0])


def read_parquet(folder: Path, address: str) -> Iterator[Tensor]:
    """Stream Parquet files with datasets."""
    from datasets import load_dataset

    urls = [f"{address}/parquet/{path.name}" for path in sorted((folder / "parquet").glob("*.parquet"))]
    for row in load_dataset("parquet", data_files=urls, split="train", streaming=True):
        yield _decode(row["audio"])


def _decode(content: bytes) -> Tensor:
    samples, _ = soundfile.read(BytesIO(content), dtype="float32")
    return torch.from_numpy(samples)


class Contender(NamedTuple):
    """A reader of shards that takes part in the comparison.

    Args:
        packages: names of the packages that must be installed.
        order: order in which it reads utterances.
        write: writes a manifest's audio as shards to a folder.
        read: yields waveforms (S,), given the folder and the server's address.
    """

    packages: tuple[str, ...]
    order: str
    write: Callable[[Path, Path], None]
    read: Callable[[Path, str], Iterator[Tensor]]


CONTENDERS = {
    "asr": Contender(("obstore",), "random", write_asr, read_asr),
    "WebDataset": Contender(("webdataset",), "shard order", write_nothing, read_webdataset),
    "lhotse Shar": Contender(("lhotse", "smart_open"), "shard order", write_shar, read_shar),
    "datasets": Contender(("datasets",), "shard order", write_parquet, read_parquet),
}

if __name__ == "__main__":
    run_command(main)
