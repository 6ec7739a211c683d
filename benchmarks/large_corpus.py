"""python -m benchmarks.large_corpus: start, plan, resume and memory of trainings on ten million utterances.

The index is written directly, as columns, and token counts are made up; few audio files stand for all. So the whole
benchmark takes minutes.
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

from asr.augment.speed_perturb import SpeedPerturb
from asr.cli.command import run_command
from asr.data.dataset import Augmentation, Reference
from asr.data.index import BATCH_ROWS, SCHEMA, SOURCE
from asr.data.index_cache import IndexCache
from asr.data.position import Position, Share, start_of_epoch
from asr.data.token_counts import TokenCounts
from asr.data.training_set import RunBounds, TrainingSet
from asr.encoder.subsampling.strided_conv import StridedConv
from asr.head.ctc import CTC
from asr.tokenizer.char import Char
from asr.training.data_module import SpeechData
from benchmarks import results
from benchmarks.corpus import SAMPLE_RATE, texts, training_set
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Results, fixed

TEXTS, AUDIO_FILES = 20_000, 64  # different ones
SECONDS = (1.5, 17.0)
WORKERS, RANKS = 4, 2  # of the row of memory
POLL_SECONDS = 0.02  # between two looks at a process's anonymous memory
LATE_EPOCH = 3  # from 0
MAX_CHARACTERS_PER_SECOND = 15  # of a text

TOKENIZER = Char()
TOKENIZER.fit([" abcdefghijklmnopqrstuvwxyz"])
REFERENCE = Reference(TOKENIZER.encode, CTC.min_frames, StridedConv.output_lengths)


class Cost(NamedTuple):
    """What a step took: the last columns of the table.

    Args:
        cpu_seconds: of the process.
        seconds: by the clock.
        megabytes: that its peak of resident memory adds, pages of mapped files included; None: not measured.
        anonymous: the same without those pages; of `loading`, the sum of Pss_Anon of all processes.
    """

    cpu_seconds: float | None
    seconds: float | None
    megabytes: float | None
    anonymous: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_corpus", description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000_000, metavar="N", help="utterances")
    parser.add_argument("--world-size", type=int, default=8, metavar="N", help="ranks that are planned for (8)")
    parser.add_argument("--batch-seconds", type=float, default=400.0, metavar="S")
    parser.add_argument("--batches", type=int, default=40, metavar="N", help="loaded before memory is measured (40)")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    written: dict[str, Callable[[float], str]] = {"CPU s": fixed(1), "s": fixed(1), "MB": fixed(0)}
    table = Results("large_corpus", {"step": str, **written, "anonymous MB": fixed(0)}, bars="anonymous MB")
    folder = given.output_dir / "large_corpus"
    try:
        begun = time.perf_counter()
        write_corpus(folder, given.lines)
        print(f"{given.lines:,} lines written in {time.perf_counter() - begun:.0f} s\n", flush=True)
        plan = folder, given.world_size, given.batch_seconds
        for step, function in (
            ("open, select and plan an epoch", start),
            ("the same, to resume at the last step of epoch 4", resume),
            ("count the steps of 100 epochs", count_steps),
        ):
            table.row(step, *in_fresh_process(function, *plan))
        table.row(f"{RANKS} ranks with {WORKERS} workers each", *load(folder, given.batch_seconds, given.batches))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table.keep(given.output_dir, facts)
    return 0


def write_corpus(folder: Path, lines: int) -> None:
    """Write a few audio files of noise, an index of many utterances that they stand for, and its token counts."""
    draw = np.random.default_rng(0)
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    num_samples = (draw.uniform(*SECONDS, AUDIO_FILES) * SAMPLE_RATE).astype(np.int64)
    for place, number in enumerate(num_samples):
        soundfile.write(folder / "audio" / f"{place}.flac", 0.1 * draw.standard_normal(number), SAMPLE_RATE)
    # as long as speech of 0.7 to 13 s at 15 characters a second, shortest first
    vocabulary = sorted((text[: 10 + place % 190] for place, text in enumerate(texts(TEXTS))), key=len)
    counts = np.array([[len(text), CTC.min_frames(REFERENCE.encode(text))] for text in vocabulary], dtype=np.int32)
    some_texts = pa.array([text.encode() for text in vocabulary], pa.binary())
    paths = pa.array([f"audio/{place}.flac".encode() for place in range(AUDIO_FILES)], pa.binary())
    tokens = np.empty((2, lines), dtype=np.int32)  # as `stored_counts` keeps them
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
            none = pa.nulls(len(rows), pa.float64()), pa.nulls(len(rows), pa.int64())
            columns = [ids, paths.take(pa.array(audio)), pa.array(seconds), none[0], speakers]
            columns += [some_texts.take(pa.array(text)), none[1], none[1]]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    np.save(folder / "tokens.npy", tokens)


def opened(folder: Path, batch_seconds: float) -> TrainingSet:
    """Open the corpus and select what can be trained on, as each rank does."""
    num_tokens, min_frames = torch.from_numpy(np.load(folder / "tokens.npy", mmap_mode="c"))
    utterances = IndexCache(folder).utterances(folder / "index.arrow").normalized(str)
    return training_set(utterances, batch_seconds, TokenCounts(num_tokens, min_frames), REFERENCE)


def start(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Do what each rank does before the first batch."""
    return measured(lambda: opened(folder, batch_seconds).epoch(start_of_epoch(LATE_EPOCH, world_size)).items(0, 0))


def resume(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Do what each rank does before the last batch of an epoch, when a run is resumed there."""
    steps = len(opened(folder, batch_seconds).epoch(start_of_epoch(LATE_EPOCH, world_size)))
    position = Position(LATE_EPOCH, (Share(world_size, steps - 1),))
    return measured(lambda: opened(folder, batch_seconds).epoch(position).items(position.batch, 0))


def count_steps(folder: Path, world_size: int, batch_seconds: float) -> Cost:
    """Count the optimizer steps of a run of 100 epochs."""
    data, bounds = opened(folder, batch_seconds), RunBounds(100, None, 1)
    return measured(lambda: data.total_steps(start_of_epoch(0, world_size), 0, bounds))


def load(folder: Path, batch_seconds: float, batches: int) -> Cost:
    """Load batches in several ranks at once; count the memory that belongs to them and their workers alone."""
    with ProcessPoolExecutor(RANKS, mp_context=get_context("spawn")) as ranks:
        work = partial(loaded_by, folder=folder, batch_seconds=batch_seconds, batches=batches)
        return Cost(None, None, None, sum(ranks.map(work, range(RANKS))))


def loaded_by(rank: int, folder: Path, batch_seconds: float, batches: int) -> float:
    """Load batches as a rank does; return Pss_Anon of it and its workers, in megabytes."""
    set_start_method("fork", force=True)  # of workers, as in a training from a shell
    torch.set_num_threads(1)
    speed = Augmentation(speed=SpeedPerturb(SAMPLE_RATE, factors=[0.9, 1.0, 1.1]))
    data = SpeechData(opened(folder, batch_seconds), [], speed, start_of_epoch(0, RANKS), WORKERS)
    data.trainer = SimpleNamespace(current_epoch=0, global_rank=rank, world_size=RANKS)  # type: ignore[assignment]
    loading = iter(data.train_dataloader())
    for _ in islice(loading, batches):
        pass
    processes = ["self", *(str(process.pid) for process in active_children())]
    assert len(processes) == 1 + WORKERS
    return sum(_kilobytes(f"/proc/{process}/smaps_rollup", "Pss_Anon:") for process in processes) / 1e3


def measured(function: Callable[[], object]) -> Cost:
    """Run a function; memory is what its peak adds to what the process has before."""
    torch.set_num_threads(1)
    before, anonymous_before = peak_memory_reset(), _kilobytes("/proc/self/status", "RssAnon:")
    most, done = [anonymous_before], threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            most[0] = max(most[0], _kilobytes("/proc/self/status", "RssAnon:"))

    watching = threading.Thread(target=watch)
    watching.start()
    begun, cpu = time.perf_counter(), time.process_time()
    function()
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    done.set()
    watching.join()
    return Cost(cpu_seconds, seconds, (peak_memory() - before) / 1e6, (most[0] - anonymous_before) / 1e3)


def _kilobytes(file: str, name: str) -> float:
    lines = Path(file).read_text(encoding="ascii").splitlines()
    return next(1.024 * int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    run_command(main)
