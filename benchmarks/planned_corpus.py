"""python -m benchmarks.planned_corpus: load on the store and on each rank when training on shards of a large corpus.

The index is synthetic, and there is no audio. The benchmark plans an epoch as each rank does, and counts the epoch's
requests to the store as `asr.plan` does. Each figure, except the fixed memory of libraries, is proportional to the
number of utterances or independent of it, so larger corpora can be extrapolated.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from asr.apps.doctor.reading import epoch_reading
from asr.core.cli.command import run_command
from asr.core.data.index import BATCH_ROWS, SCHEMA, SHARDS
from asr.core.data.position import start_of_epoch
from benchmarks import results
from benchmarks.large_corpus import SECONDS, open_training_set
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.results import Columns, Results, fixed

SHARD_BYTES = 1_000_000_000
BYTES_PER_SECOND = 17_000  # LibriSpeech's FLAC files take 60 GB for 960 hours of audio
TEXT = b"a text of made-up words as long as a sentence"
TOKENS, MIN_FRAMES = 10, 12  # tokens and minimum frames of each utterance; small enough that no utterance is dropped

COLUMNS: Columns = {
    "CPU s to select": fixed(1),
    "CPU s to plan": fixed(1),
    "columns and plan MB": fixed(0),
    "peak MB": fixed(0),
    "index MB": fixed(0),
    "steps": fixed(0),
    "requests/batch": fixed(1),
    "requests/s per rank": fixed(1),
    "requests/s in total": fixed(0),
    "GB/s in total": fixed(2),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per number of utterances."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned_corpus", description=__doc__)
    parser.add_argument(
        "--lines", type=int, nargs="+", default=[1_000_000, 10_000_000], metavar="N", help="numbers of utterances"
    )
    parser.add_argument("--ranks", type=int, default=512, metavar="N", help="ranks in the plan (default: 512)")
    parser.add_argument(
        "--batch-seconds", type=float, default=400.0, metavar="S", help="padded seconds of a batch (default: 400)"
    )
    parser.add_argument(
        "--speed", type=float, default=300.0, metavar="S", help="seconds of audio that each rank trains on per second"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    table = Results("planned_corpus", {"utterances": str, **COLUMNS}, bars="CPU s to plan")
    folder = options.output_dir / "planned_corpus"
    for lines in options.lines:
        try:
            write_index(folder, lines)
            figures = in_fresh_process(planned, folder, options.ranks, options.batch_seconds, options.speed)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        table.row(f"{lines:,}", *figures)
    table.save(options.output_dir, facts)
    return 0


def write_index(folder: Path, lines: int) -> None:
    """Write the token counts and the index of utterances with random lengths, stored consecutively in shards."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    num_shards = int(lines * np.mean(SECONDS) * BYTES_PER_SECOND / SHARD_BYTES) + 2
    metadata = {**SCHEMA.metadata, SHARDS: json.dumps({_shard(n): 2 * SHARD_BYTES for n in range(num_shards)}).encode()}
    total_bytes = 0
    with pa.ipc.new_file(str(folder / "index.arrow"), SCHEMA.with_metadata(metadata)) as writer:
        for first in range(0, lines, BATCH_ROWS):
            number = min(BATCH_ROWS, lines - first)
            seconds = draw.uniform(*SECONDS, number).round(3)
            sizes = (seconds * BYTES_PER_SECOND).astype(np.int64)
            starts = total_bytes + sizes.cumsum() - sizes
            total_bytes += int(sizes.sum())
            columns = [
                pa.array([b"%d" % row for row in range(first, first + number)], pa.binary()),
                pa.array([_shard(shard).encode() for shard in starts // SHARD_BYTES], pa.binary()),
                pa.array(seconds),
                pa.nulls(number, pa.float64()),
                pa.nulls(number, pa.binary()),
                pa.array([TEXT] * number, pa.binary()),
                pa.array(starts % SHARD_BYTES),
                pa.array(sizes),
            ]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    np.save(folder / "tokens.npy", np.repeat(np.array([[TOKENS], [MIN_FRAMES]], dtype=np.int32), lines, axis=1))


def planned(folder: Path, ranks: int, batch_seconds: float, speed: float) -> list[float]:
    """Plan an epoch, and the requests to the store that read its audio; return the values of COLUMNS."""
    torch.set_num_threads(1)
    start = time.process_time()
    training_set = open_training_set(folder, batch_seconds)
    selection_end = time.process_time()
    plan = training_set.epoch(start_of_epoch(0, ranks))
    seconds = [selection_end - start, time.process_time() - selection_end]
    peak = peak_memory()
    reading = epoch_reading(plan, training_set.utterances)
    assert reading is not None
    index_bytes = sum(part.index.num_bytes for part in training_set.utterances.parts)
    megabytes = [(training_set.num_bytes + plan.num_bytes) / 1e6, peak / 1e6, index_bytes / 1e6]
    audio_seconds = float(plan.durations[plan.plan.order].sum())
    requests, fetched_bytes = (speed * value / audio_seconds for value in (reading.requests, reading.fetched_bytes))
    batch_requests = reading.requests / reading.num_batches
    gigabytes = fetched_bytes * ranks / 1e9
    return [*seconds, *megabytes, len(plan), batch_requests, requests, requests * ranks, gigabytes]


def _shard(number: int) -> str:
    return f"train-{number:06d}.tar"


if __name__ == "__main__":
    run_command(main)
