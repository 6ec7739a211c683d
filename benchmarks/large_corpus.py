"""python -m benchmarks.large_corpus: time and memory to start, plan and resume training on ten million utterances.

To take only minutes, the benchmark writes the index directly as columns, computes token counts for a few texts, and
lets a few audio files represent all utterances.
"""

import argparse
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import active_children, get_context, set_start_method
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import soundfile
import torch

from asr.components.augment.speed_perturb import SpeedPerturb
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.components.head.ctc import CTC
from asr.components.tokenizer.char import Char
from asr.core.cli.command import run_command
from asr.core.data.dataset import Augmentation, Reference
from asr.core.data.index import BATCH_ROWS, SCHEMA, SOURCE
from asr.core.data.index_cache import IndexCache
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.data.token_counts import TokenCounts
from asr.core.data.training_set import RunBounds, TrainingSet
from asr.core.training.data_module import SpeechData
from benchmarks import results
from benchmarks.corpus import SAMPLE_RATE, texts, training_set
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Results, fixed

TEXTS, AUDIO_FILES = 20_000, 64  # number of distinct texts and files
SECONDS = (1.5, 17.0)  # shortest and longest utterance
WORKERS, RANKS = 4, 2  # numbers in the row that measures the memory of loading
POLL_SECONDS = 0.02  # interval between measurements of a process's anonymous memory
LATE_EPOCH = 3  # the fourth epoch, because epochs count from 0
MAX_CHARACTERS_PER_SECOND = 15  # upper bound of a text's speaking rate

TOKENIZER = Char()
TOKENIZER.fit([" abcdefghijklmnopqrstuvwxyz"])
REFERENCE = Reference(TOKENIZER.encode, CTC.min_frames, StridedConv.output_lengths)


class Cost(NamedTuple):
    """Cost of a step: the last columns of the table.

    Args:
        cpu_seconds: CPU seconds of the process.
        seconds: wall-clock seconds.
        megabytes: peak of resident memory above its size before the step, in MB, including pages of mapped files; None:
            not measured.
        anonymous: peak of anonymous memory above its size before the step, in MB, which excludes pages of mapped files;
            for `load`, the sum of Pss_Anon of all processes.
    """

    cpu_seconds: float | None
    seconds: float | None
    megabytes: float | None
    anonymous: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_corpus", description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000_000, metavar="N", help="utterances in the corpus")
    parser.add_argument("--world-size", type=int, default=8, metavar="N", help="ranks in the plan (default: 8)")
    parser.add_argument("--batch-seconds", type=float, default=400.0, metavar="S", help="padded seconds of a batch")
    parser.add_argument(
        "--batches",
        type=int,
        default=40,
        metavar="N",
        help="batches that each rank loads before memory is measured (default: 40)",
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    cost_columns: dict[str, Callable[[float], str]] = {"CPU s": fixed(1), "s": fixed(1), "MB": fixed(0)}
    table = Results("large_corpus", {"step": str, **cost_columns, "anonymous MB": fixed(0)}, bars="anonymous MB")
    folder = options.output_dir / "large_corpus"
    try:
        start_time = time.perf_counter()
        write_corpus(folder, options.lines)
        print(f"{options.lines:,} lines written in {time.perf_counter() - start_time:.0f} s\n", flush=True)
        sizes = folder, options.world_size, options.batch_seconds
        for step, function in (
            ("open, select and plan an epoch", start),
            ("open, select and plan to resume at the last step of epoch 4", resume),
            ("count the steps of 100 epochs", count_steps),
        ):
            table.row(step, *in_fresh_process(function, *sizes))
        table.row(f"{RANKS} ranks with {WORKERS} workers each", *load(folder, options.batch_seconds, options.batches))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table.save(options.output_dir, facts)
    return 0


def write_corpus(folder: Path, lines: int) -> None:
    """Write a few audio files of noise, an index of `lines` utterances that share them, and its token counts."""
    draw = np.random.default_rng(0)
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    num_samples = (draw.uniform(*SECONDS, AUDIO_FILES) * SAMPLE_RATE).astype(np.int64)
    for index, number in enumerate(num_samples):
        soundfile.write(folder / "audio" / f"{index}.flac", 0.1 * draw.standard_normal(number), SAMPLE_RATE)
    # Texts of 10 to 199 characters, sorted by length: 0.7 to 13 s at 15 characters per second.
    vocabulary = sorted((text[: 10 + index % 190] for index, text in enumerate(texts(TEXTS))), key=len)
    counts = np.array([[len(text), CTC.min_frames(REFERENCE.encode(text))] for text in vocabulary], dtype=np.int32)
    text_array = pa.array([text.encode() for text in vocabulary], pa.binary())
    paths = pa.array([f"audio/{index}.flac".encode() for index in range(AUDIO_FILES)], pa.binary())
    tokens = np.empty((2, lines), dtype=np.int32)  # in the format of `stored_counts`
    metadata = {**SCHEMA.metadata, SOURCE: b"benchmark"}
    with pa.ipc.new_file(str(folder / "index.arrow"), SCHEMA.with_metadata(metadata)) as writer:
        for first in range(0, lines, BATCH_ROWS):
            rows = np.arange(first, min(first + BATCH_ROWS, lines))
            audio = draw.integers(AUDIO_FILES, size=len(rows))
            seconds = num_samples[audio] / SAMPLE_RATE
            text = draw.integers(np.searchsorted(counts[:, 0], MAX_CHARACTERS_PER_SECOND * seconds))
            tokens[:, rows] = counts[text].T
            ids = pc.cast(pc.cast(pa.array(rows + 10**9), pa.string()), pa.binary())
            speakers = pc.cast(pc.cast(pa.array(rows % 2500), pa.string()), pa.binary())
            null_floats, null_integers = pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.int64())
            columns = [ids, paths.take(pa.array(audio)), pa.array(seconds), null_floats, speakers]
            columns += [text_array.take(pa.array(text)), null_integers, null_integers]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    np.save(folder / "tokens.npy", tokens)


def open_training_set(folder: Path, batch_seconds: float) -> TrainingSet:
    """Open the corpus and select the utterances for training, as each rank does."""
    num_tokens, min_frames = torch.from_numpy(np.load(folder / "tokens.npy", mmap_mode="c"))
    utterances = IndexCache(folder).utterances(folder / "index.arrow").normalized(str)
    return training_set(utterances, batch_seconds, TokenCounts(num_tokens, min_frames), REFERENCE)


def start(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Measure the work of each rank before the first batch."""
    return measured(
        lambda: open_training_set(folder, batch_seconds).epoch(start_of_epoch(LATE_EPOCH, world_size)).items(0, 0)
    )


def resume(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Measure the work of each rank before its first batch if a run resumes at the last batch of an epoch."""
    steps = len(open_training_set(folder, batch_seconds).epoch(start_of_epoch(LATE_EPOCH, world_size)))
    position = Position(LATE_EPOCH, (Share(world_size, steps - 1),))
    return measured(lambda: open_training_set(folder, batch_seconds).epoch(position).items(position.batch, 0))


def count_steps(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Measure how long it takes to count the optimizer steps of a run of 100 epochs."""
    data, bounds = open_training_set(folder, batch_seconds), RunBounds(100, None, 1)
    return measured(lambda: data.total_steps(start_of_epoch(0, world_size), 0, bounds))


def load(folder: Path, batch_seconds: float, batches: int) -> Cost:
    """Load batches in several ranks in parallel; measure the anonymous memory of the ranks and their workers."""
    with ProcessPoolExecutor(RANKS, mp_context=get_context("spawn")) as ranks:
        run_rank = partial(load_in_rank, folder=folder, batch_seconds=batch_seconds, batches=batches)
        return Cost(None, None, None, sum(ranks.map(run_rank, range(RANKS))))


def load_in_rank(rank: int, folder: Path, batch_seconds: float, batches: int) -> float:
    """Load batches as a rank does; return the sum of Pss_Anon of this process and its workers, in megabytes."""
    set_start_method("fork", force=True)  # start method of workers in a training run started from a shell
    torch.set_num_threads(1)
    speed = Augmentation(speed=SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1]))
    data = SpeechData(open_training_set(folder, batch_seconds), [], speed, start_of_epoch(0, RANKS), WORKERS)
    data.trainer = SimpleNamespace(current_epoch=0, global_rank=rank, world_size=RANKS)  # type: ignore[assignment]
    loading = iter(data.train_dataloader())
    for _ in islice(loading, batches):
        pass
    processes = ["self", *(str(process.pid) for process in active_children())]
    assert len(processes) == 1 + WORKERS
    return sum(_kilobytes(f"/proc/{process}/smaps_rollup", "Pss_Anon:") for process in processes) / 1e3


def measured(function: Callable[[], object]) -> Cost:
    """Run a function and return its cost; memory is the peak minus the memory of the process before the call."""
    torch.set_num_threads(1)
    initial_bytes, initial_anonymous = peak_memory_reset(), _kilobytes("/proc/self/status", "RssAnon:")
    max_anonymous, finished = [initial_anonymous], threading.Event()

    def watch() -> None:
        while not finished.wait(POLL_SECONDS):
            max_anonymous[0] = max(max_anonymous[0], _kilobytes("/proc/self/status", "RssAnon:"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    function()
    seconds, cpu_seconds = time.perf_counter() - wall_start, time.process_time() - cpu_start
    finished.set()
    watcher.join()
    return Cost(
        cpu_seconds, seconds, (peak_memory() - initial_bytes) / 1e6, (max_anonymous[0] - initial_anonymous) / 1e3
    )


def _kilobytes(file: str, name: str) -> float:
    lines = Path(file).read_text(encoding="ascii").splitlines()
    return next(1.024 * int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    run_command(main)
