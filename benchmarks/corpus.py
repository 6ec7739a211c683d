"""python -m benchmarks.corpus: time and memory from a manifest of a million lines to the first batch's items."""

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from asr.augment.speed_perturb import SpeedPerturb
from asr.build import build_features
from asr.cli.command import run_command
from asr.data.dataset import Reference
from asr.data.index_cache import IndexCache
from asr.data.position import start_of_epoch
from asr.data.settings import PlanSettings
from asr.data.token_counts import TokenCounts, stored_counts
from asr.data.training_set import RunBounds, TrainingSet
from asr.data.utterances import Utterances
from asr.encoder.subsampling.strided_conv import StridedConv
from asr.head.ctc import CTC
from asr.settings.conf import default_settings, run_defaults
from asr.settings.read import read
from asr.tokenizer.sentencepiece import SentencePiece
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Results, fixed

WORDS = 4_000  # different ones of the made-up texts
TEXT_WORDS = (5, 35)
FIT_TEXTS = 20_000  # that the tokenizer is trained on
SAMPLE_RATE = 16_000
PLAN_KEYS = (
    *("batch_seconds", "max_utterances", "max_squared_seconds", "max_cells", "min_seconds", "max_seconds"),
    *("max_train_utterances", "jitter", "sorted_epochs", "lengths_per_doubling"),
)


class Cost(NamedTuple):
    """What a step took: the last columns of the table."""

    cpu_seconds: float
    seconds: float
    megabytes: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each step and number of lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000_000], metavar="N", help="of manifests")
    parser.add_argument("--world-size", type=int, default=8, metavar="N", help="ranks that are planned for (8)")
    parser.add_argument("--batch-seconds", type=float, default=400.0, metavar="S")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    columns = {"lines": str, "step": str, "CPU s": fixed(2), "s": fixed(2), "MB": fixed(0)}
    table = Results("corpus", columns, bars="CPU s", within=("lines",))
    folder = given.output_dir / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for lines in given.lines:
            write_manifest(folder / "train.jsonl", lines)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            plan = folder, given.world_size, given.batch_seconds
            for step, cost in (
                ("compile the index", in_fresh_process(compile_index, folder)),
                ("the tokenizer alone encodes the texts", in_fresh_process(encode_alone, folder)),
                ("count the tokens", in_fresh_process(count, folder)),
                ("open, select and plan an epoch", in_fresh_process(open_and_plan, *plan)),
                ("count the steps of 100 epochs", in_fresh_process(count_steps, *plan)),
            ):
                table.row(f"{lines:,}", step, *cost)
    finally:
        shutil.rmtree(folder)
    table.keep(given.output_dir, facts)
    return 0


def texts(number: int) -> Iterator[str]:
    """Make up texts of words of a vocabulary, frequent ones first."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(draw.choices(letters, weights=range(26, 0, -1), k=draw.randint(2, 10))) for _ in range(WORDS)]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    for _ in range(number):
        yield " ".join(draw.choices(vocabulary, weights, k=draw.randint(*TEXT_WORDS)))


def write_manifest(path: Path, lines: int) -> None:
    """Write a manifest of made-up utterances, whose audio is not there."""
    draw = random.Random(1)
    with path.open("w") as file:
        for place, text in enumerate(texts(lines)):
            name = f"{place % 2500}-{place // 2500}-{place:08d}"
            entry = {"id": name, "audio_filepath": f"audio/{place % 2500}/{name}.flac", "text": text}
            entry |= {"duration": round(draw.uniform(1.5, 17), 3), "speaker": str(place % 2500)}
            file.write(json.dumps(entry) + "\n")


def measured(function: Callable[[], object]) -> Cost:
    """Run a function; memory is what its peak adds to what the process has before."""
    torch.set_num_threads(1)
    before = peak_memory_reset()
    begun, cpu = time.perf_counter(), _cpu_seconds()
    function()
    return Cost(_cpu_seconds() - cpu, time.perf_counter() - begun, (peak_memory() - before) / 1e6)


def _cpu_seconds() -> float:
    """Seconds of processors that this process and those it has waited for have used."""
    return sum(os.times()[:4])


def compile_index(folder: Path) -> Cost:
    """Compile the manifest into an index."""
    return measured(lambda: utterances(folder))


def utterances(folder: Path) -> Utterances:
    """Open the manifest's index."""
    return IndexCache(folder / "cache").utterances(folder / "train.jsonl").normalized(str)


def tokenizer() -> SentencePiece:
    """Train a tokenizer on some of the texts."""
    fitted = SentencePiece(algorithm="unigram", vocab_size=1024)
    fitted.fit(texts(FIT_TEXTS))
    return fitted


def reference() -> Reference:
    """The reference of a CTC model with these tokens."""
    return Reference(tokenizer().encode, CTC.min_frames, StridedConv.output_lengths)


def encode_alone(folder: Path) -> Cost:
    """Encode every text, and keep nothing."""
    encode, given = tokenizer().encode, list(utterances(folder).texts)

    def encode_all() -> None:
        for text in given:
            encode(text)

    return measured(encode_all)


def count(folder: Path) -> Cost:
    """Count the tokens of all texts, in as many processes as there are cores."""
    given, how = utterances(folder), reference()
    return measured(lambda: stored_counts(given, how, IndexCache(folder / "cache"), "sentencepiece"))


def training_set(given: Utterances, batch_seconds: float, counts: TokenCounts, how: Reference) -> TrainingSet:
    """Select the utterances of a training set."""
    data = run_defaults()["data"] | {"batch_seconds": batch_seconds}
    settings = read(PlanSettings, {key: data[key] for key in PLAN_KEYS}, "data")
    speed = SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1])
    features = build_features({"features": default_settings("features", "fbank")})
    return TrainingSet(given, features, how, speed, 0, settings, 0.0, counts)


def open_and_plan(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Do what each rank does before the first batch, once index and counts are there."""
    how = reference()

    def start() -> None:
        given = utterances(folder)
        counts = stored_counts(given, how, IndexCache(folder / "cache"), "sentencepiece")
        training_set(given, batch_seconds, counts, how).epoch(start_of_epoch(0, world_size)).items(0, 0)

    return measured(start)


def count_steps(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Count the optimizer steps of a run of 100 epochs."""
    how = reference()
    counts = stored_counts(utterances(folder), how, IndexCache(folder / "cache"), "sentencepiece")
    data, bounds = training_set(utterances(folder), batch_seconds, counts, how), RunBounds(100, None, 1)
    return measured(lambda: data.total_steps(start_of_epoch(0, world_size), 0, bounds))


if __name__ == "__main__":
    run_command(main)
