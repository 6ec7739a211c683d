"""python -m benchmarks.pages: training steps of a CPU with pages of memory of 4 KB and of 2 MB.

Each time is measured in a process of its own, in turns: the median CPU time of STEPS forward and backward passes of a
batch, and the peak of resident memory. "returned": freed memory goes back to Linux, which clears it; "kept":
glibc keeps it; "kept, 2 MB": as asr.train does, it also asks Linux for huge pages, which has an effect where
/sys/kernel/mm/transparent_hugepage/enabled is madvise.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product

import torch

from asr.apps.doctor.memory import FULL
from asr.apps.doctor.trial import set_modes
from asr.base.system.processes import keep_memory, return_memory, use_huge_pages
from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.optimizers import both_passes
from benchmarks.results import Columns, Results, fixed
from benchmarks.training_memory import make_batch, make_model

STEPS = 10
WARM_UP = 3
WAYS: dict[str, Sequence[Callable[[], None]]] = {
    "returned": [return_memory],
    "kept": [keep_memory],
    "kept, 2 MB": [keep_memory, use_huge_pages],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per encoder, batch and way of allocating."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--encoders", nargs="+", default=["conformer_xs", "conformer_s"], help="files of conf/encoder")
    parser.add_argument(
        "--batches", nargs="+", default=["4x5", "8x10"], metavar="NxS", help="N utterances of at most S seconds"
    )
    results.add_options(parser)
    parser.set_defaults(turns=5)
    options = parser.parse_args(arguments)
    facts = about(options)
    columns: Columns = {
        "encoder": str,
        "batch": str,
        "memory": str,
        "CPU ms": fixed(1),
        "x kept": fixed(3),
        "GB": fixed(2),
    }
    table = Results("pages", columns, bars="x kept", group_by=("encoder", "batch"))
    for encoder, batch in product(options.encoders, options.batches):
        count, seconds = batch.split("x")
        turns = [
            {way: in_fresh_process(measure, encoder, way, int(count), float(seconds)) for way in WAYS}
            for _ in range(options.turns)
        ]
        for way in WAYS:
            milliseconds = statistics.median(turn[way][0] for turn in turns)
            ratio = statistics.median(turn[way][0] / turn["kept"][0] for turn in turns)
            table.row(encoder, batch, way, milliseconds, ratio, max(turn[way][1] for turn in turns) / 1e9)
    table.save(options.output_dir, facts)
    return 0


def measure(encoder: str, way: str, count: int, seconds: float) -> tuple[float, float]:
    """Return the median CPU time of a step's passes in milliseconds, and the process's peak of memory in bytes."""
    torch.set_num_threads(1)
    for allocate in WAYS[way]:
        allocate()
    model, batch = make_model(encoder, FULL), make_batch(count, seconds)
    set_modes(model)
    times = []
    for _ in range(WARM_UP + STEPS):
        start = time.process_time()
        both_passes(model, batch)
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[WARM_UP:]), peak_memory()


if __name__ == "__main__":
    run_command(main)
