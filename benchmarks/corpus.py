"""python -m benchmarks.corpus: time and memory from a manifest of a million lines to the plan of the first batch."""

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

from asr.base.settings.conf import default_settings, run_defaults
from asr.base.settings.read import read
from asr.components.augment.speed_perturb import SpeedPerturb
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.components.head.ctc import CTC
from asr.components.tokenizer.sentencepiece import SentencePiece
from asr.core.build import build_features
from asr.core.cli.command import run_command
from asr.core.data.dataset import Reference
from asr.core.data.index_cache import IndexCache
from asr.core.data.position import start_of_epoch
from asr.core.data.settings import PlanSettings
from asr.core.data.token_counts import TokenCounts, stored_counts
from asr.core.data.training_set import RunBounds, TrainingSet
from asr.core.data.utterances import Utterances
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Columns, Results, fixed

WORDS = 4_000  # vocabulary of the generated texts
TEXT_WORDS = (5, 35)  # words of the shortest and the longest text
FIT_TEXTS = 20_000  # texts that train the tokenizer
SAMPLE_RATE = 16_000
PLAN_KEYS = (
    *("batch_seconds", "max_utterances", "max_squared_seconds", "max_cells", "min_seconds", "max_seconds"),
    *("max_train_utterances", "jitter", "sorted_epochs"),
)


class Cost(NamedTuple):
    """Cost of a preparation step: the last columns of the table."""

    cpu_seconds: float
    seconds: float
    megabytes: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row for each number of manifest lines and each preparation step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument(
        "--lines", type=int, nargs="+", default=[1_000_000], metavar="N", help="numbers of lines of the manifest"
    )
    parser.add_argument("--world-size", type=int, default=8, metavar="N", help="ranks in the plan (default: 8)")
    parser.add_argument("--batch-seconds", type=float, default=400.0, metavar="S", help="padded seconds of a batch")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    columns: Columns = {"lines": str, "step": str, "CPU s": fixed(2), "s": fixed(2), "MB": fixed(0)}
    table = Results("corpus", columns, bars="CPU s", group_by=("lines",))
    folder = options.output_dir / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for lines in options.lines:
            write_manifest(folder / "train.jsonl", lines)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            sizes = folder, options.world_size, options.batch_seconds
            for step, cost in (
                ("compile the index", in_fresh_process(compile_index, folder)),
                ("the tokenizer alone encodes the texts", in_fresh_process(encode_alone, folder)),
                ("count the tokens", in_fresh_process(count, folder)),
                ("open, select and plan an epoch", in_fresh_process(open_and_plan, *sizes)),
                ("count the steps of 100 epochs", in_fresh_process(count_steps, *sizes)),
            ):
                table.row(f"{lines:,}", step, *cost)
    finally:
        shutil.rmtree(folder)
    table.save(options.output_dir, facts)
    return 0


def texts(number: int) -> Iterator[str]:
    """Generate texts from a random vocabulary with Zipf-distributed frequencies."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(draw.choices(letters, weights=range(26, 0, -1), k=draw.randint(2, 10))) for _ in range(WORDS)]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    for _ in range(number):
        yield " ".join(draw.choices(vocabulary, weights, k=draw.randint(*TEXT_WORDS)))


def write_manifest(path: Path, lines: int) -> None:
    """Write a manifest of generated utterances whose audio files do not exist."""
    draw = random.Random(1)
    with path.open("w") as file:
        for index, text in enumerate(texts(lines)):
            name = f"{index % 2500}-{index // 2500}-{index:08d}"
            entry: dict[str, object] = {"id": name, "audio_filepath": f"audio/{index % 2500}/{name}.flac", "text": text}
            entry |= {"duration": round(draw.uniform(1.5, 17), 3), "speaker": str(index % 2500)}
            file.write(json.dumps(entry) + "\n")


def measured(function: Callable[[], object]) -> Cost:
    """Run a function and return its cost; memory is the peak minus the memory of the process before the call."""
    torch.set_num_threads(1)
    initial_bytes = peak_memory_reset()
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    function()
    return Cost(_cpu_seconds() - cpu_start, time.perf_counter() - start, (peak_memory() - initial_bytes) / 1e6)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished child processes."""
    return sum(os.times()[:4])


def compile_index(folder: Path) -> Cost:
    """Measure the compilation of the manifest into an index."""
    return measured(lambda: utterances(folder))


def utterances(folder: Path) -> Utterances:
    """Return the manifest's utterances from its index."""
    return IndexCache(folder / "cache").utterances(folder / "train.jsonl").normalized(str)


def tokenizer() -> SentencePiece:
    """Train a tokenizer on FIT_TEXTS texts."""
    fitted = SentencePiece(algorithm="unigram", vocab_size=1024)
    fitted.fit(texts(FIT_TEXTS))
    return fitted


def reference() -> Reference:
    """Return what TrainingSet needs from a CTC model: encoding of texts, minimum number of frames, output lengths."""
    return Reference(tokenizer().encode, CTC.min_frames, StridedConv.output_lengths)


def encode_alone(folder: Path) -> Cost:
    """Measure the tokenizer on all texts, without storing the tokens."""
    encode, all_texts = tokenizer().encode, list(utterances(folder).texts)

    def encode_all() -> None:
        for text in all_texts:
            encode(text)

    return measured(encode_all)


def count(folder: Path) -> Cost:
    """Measure how long it takes to count the tokens of all texts, with one process per core."""
    corpus, rules = utterances(folder), reference()
    return measured(lambda: stored_counts(corpus, rules, IndexCache(folder / "cache"), "sentencepiece"))


def training_set(corpus: Utterances, batch_seconds: float, counts: TokenCounts, rules: Reference) -> TrainingSet:
    """Select the utterances of a training set."""
    data = run_defaults()["data"] | {"batch_seconds": batch_seconds}
    settings = read(PlanSettings, {key: data[key] for key in PLAN_KEYS}, "data")
    speed = SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1])
    features = build_features({"features": default_settings("features", "fbank")})
    return TrainingSet(corpus, features, rules, speed, 0, settings, 0.0, counts)


def open_and_plan(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Measure the work of each rank before the first batch, with an existing index and existing counts."""
    rules = reference()

    def start() -> None:
        corpus = utterances(folder)
        counts = stored_counts(corpus, rules, IndexCache(folder / "cache"), "sentencepiece")
        training_set(corpus, batch_seconds, counts, rules).epoch(start_of_epoch(0, world_size)).items(0, 0)

    return measured(start)


def count_steps(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Measure how long it takes to count the optimizer steps of a run of 100 epochs."""
    rules = reference()
    counts = stored_counts(utterances(folder), rules, IndexCache(folder / "cache"), "sentencepiece")
    data, bounds = training_set(utterances(folder), batch_seconds, counts, rules), RunBounds(100, None, 1)
    return measured(lambda: data.total_steps(start_of_epoch(0, world_size), 0, bounds))


if __name__ == "__main__":
    run_command(main)
