"""python -m benchmarks.long_audio: encode one utterance of up to an hour with asr's and other toolkits' encoders."""

import argparse
import functools
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about, measure, peak_memory, peak_memory_reset
from benchmarks.nets import (
    ATTENTIONS,
    OURS,
    PEERS,
    Batch,
    encoder_config,
    entries,
    installed,
    make_batch,
    make_net,
)
from benchmarks.race import race
from benchmarks.results import Results, fixed

SECONDS = [10, 30, 120, 300, 600, 1200, 3600]


class Outcome(NamedTuple):
    """CPU seconds and peak memory in bytes of a finished run, or the reason why it did not finish."""

    seconds: float | None = None
    peak: float | None = None
    failure: str | None = None


class Runner(NamedTuple):
    """A process that runs one network, and the connection to it."""

    process: BaseProcess
    connection: Connection


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per length and contender; a contender that exceeds a limit does not run greater lengths."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_audio", description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["s"], help="sizes of conf/encoder/conformer_*.yaml (default: s)")
    parser.add_argument(
        "--seconds",
        nargs="+",
        type=int,
        default=SECONDS,
        metavar="S",
        help="lengths of the utterance (default: 10 to 3600)",
    )
    parser.add_argument("--contenders", nargs="+", choices=(OURS, *PEERS), default=[OURS, *PEERS], metavar="NAME")
    parser.add_argument("--without-front-end", action="store_true", help="time the blocks alone, on inputs (B, T', D)")
    parser.add_argument(
        "--limit-seconds", type=float, default=100.0, metavar="S", help="time limit of a run (default: 100)"
    )
    parser.add_argument(
        "--limit-gb", type=float, default=12.0, metavar="GB", help="memory limit of a process (default: 12)"
    )
    results.add_options(parser)
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    options.contenders = installed(options.contenders)
    facts = about(options, measure())
    number_columns = {"CPU s": fixed(2), "x ours": fixed(2), "GB above the model": fixed(2)}
    table = Results(
        "long_audio",
        {"size": str, "seconds": str, "contender": str, **number_columns, "ended": str},
        bars="CPU s",
        group_by=("size", "seconds"),
    )
    for size in options.sizes:
        runners = start(size, options)
        try:
            for seconds in options.seconds:
                _rows(table, runners, size, seconds, options)
        finally:
            for runner in runners.values():
                runner.process.kill()
    table.save(options.output_dir, facts)
    return 0


def start(size: str, options: argparse.Namespace) -> dict[str, Runner]:
    """Start one process per contender, and one for our encoder with each attention of conf/encoder/block/attention."""
    context = multiprocessing.get_context("spawn")
    runners = {}
    for name, (contender, encoder_name) in entries(options.contenders, size, ATTENTIONS).items():
        parent_end, child_end = context.Pipe()
        settings = (
            child_end,
            contender,
            encoder_name,
            not options.without_front_end,
            options.turns,
            options.limit_seconds,
        )
        process = context.Process(target=serve_runs, args=settings, daemon=True)
        process.start()
        child_end.close()
        runners[name] = Runner(process, parent_end)
    for runner in runners.values():
        runner.connection.recv()  # waits until the process is ready
    return runners


def serve_runs(
    connection: Connection, contender: str, encoder_name: str, with_front_end: bool, turns: int, limit: float
) -> None:
    """Send None once ready; then run the network on each length received from `connection`, and send the outcome."""
    encoder = make_net(contender, encoder_name, with_front_end=with_front_end).eval().encoder
    dim = None if with_front_end else encoder_config(encoder_name)["dim"]

    @torch.inference_mode()
    def run(batch: Batch) -> None:
        encoder(batch.features, batch.lengths)

    run(make_batch(1, 1.0, blocks_dim=dim))
    initial_bytes = peak_memory_reset()
    connection.send(None)
    while True:
        task = {contender: functools.partial(run, make_batch(1, connection.recv(), blocks_dim=dim))}
        peak_memory_reset()
        try:
            turn = race(task, turns=1, warm_up=0)[contender]
            num_turns = min(turns, int(limit / 4 / turn.seconds))  # one turn is enough for a long run
            if num_turns > 1:
                turn = race(task, turns=num_turns, warm_up=0)[contender]
        except RuntimeError as error:
            connection.send(Outcome(failure=str(error).splitlines()[0][:60]))
            continue
        connection.send(Outcome(turn.cpu_seconds, peak_memory() - initial_bytes))


def _rows(table: Results, runners: dict[str, Runner], size: str, seconds: int, options: argparse.Namespace) -> None:
    ours: float | None = None
    for name, (process, connection) in list(runners.items()):
        connection.send(seconds)
        outcome = _wait(process, connection, options.limit_seconds, options.limit_gb)
        ours = outcome.seconds if name == OURS else ours
        ratio = outcome.seconds and ours and outcome.seconds / ours
        peak = outcome.peak and outcome.peak / 1e9
        table.row(size, str(seconds), name, outcome.seconds, ratio, peak, outcome.failure or "yes")
        if outcome.failure:
            process.kill()
            del runners[name]


def _wait(process: BaseProcess, connection: Connection, limit_seconds: float, limit_gb: float) -> Outcome:
    """Wait until a run ends or its process exceeds a limit, and return the outcome."""
    deadline = time.monotonic() + limit_seconds
    while not connection.poll(0.02):
        if process.pid and process.is_alive() and peak_memory(process.pid) > 1e9 * limit_gb:
            return Outcome(failure=f"over {limit_gb:g} GB")
        if time.monotonic() > deadline:
            return Outcome(failure=f"over {limit_seconds:g} s")
    try:
        return connection.recv()
    except EOFError:
        return Outcome(failure="its process ended")


if __name__ == "__main__":
    run_command(main)
