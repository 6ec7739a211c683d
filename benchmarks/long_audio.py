"""python -m benchmarks.long_audio: one utterance of up to an hour through an encoder, ours and other toolkits'."""

import argparse
import functools
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from asr.cli.command import run_command
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
    """CPU seconds and bytes of memory of a run that ended, or why it did not."""

    seconds: float | None = None
    peak: float | None = None
    failed: str | None = None


class Runner(NamedTuple):
    """A process with one net in it, and the way to it."""

    process: BaseProcess
    connection: Connection


def main(arguments: Sequence[str] | None = None) -> int:
    """Time each length; a contender that reaches a limit is not asked for longer ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_audio", description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["s"], help="of conf/encoder/conformer_*.yaml (s)")
    parser.add_argument("--seconds", nargs="+", type=int, default=SECONDS, metavar="S", help="of audio (10 to 3600)")
    parser.add_argument("--contenders", nargs="+", choices=(OURS, *PEERS), default=[OURS, *PEERS], metavar="NAME")
    parser.add_argument("--without-front-end", action="store_true", help="the blocks alone, from (B, T', D)")
    parser.add_argument("--limit-seconds", type=float, default=100.0, metavar="S", help="of a run (100)")
    parser.add_argument("--limit-gb", type=float, default=12.0, metavar="GB", help="of a process (12)")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    given = parser.parse_args(arguments)
    given.contenders = installed(given.contenders)
    facts = about(given, measure())
    numbers = {"CPU s": fixed(2), "x ours": fixed(2), "GB above the model": fixed(2)}
    table = Results(
        "long_audio",
        {"size": str, "seconds": str, "contender": str, **numbers, "ended": str},
        bars="CPU s",
        within=("size", "seconds"),
    )
    for size in given.sizes:
        runners = start(size, given)
        try:
            for seconds in given.seconds:
                _rows(table, runners, size, seconds, given)
        finally:
            for runner in runners.values():
                runner.process.kill()
    table.keep(given.output_dir, facts)
    return 0


def start(size: str, given: argparse.Namespace) -> dict[str, Runner]:
    """Start a process for each contender; ours with each of conf/encoder/attention, too."""
    context = multiprocessing.get_context("spawn")
    runners = {}
    for name, (contender, encoder_name) in entries(given.contenders, size, ATTENTIONS).items():
        here, there = context.Pipe()
        settings = (there, contender, encoder_name, not given.without_front_end, given.turns, given.limit_seconds)
        process = context.Process(target=serve_runs, args=settings, daemon=True)
        process.start()
        there.close()
        runners[name] = Runner(process, here)
    for runner in runners.values():
        runner.connection.recv()  # it is ready
    return runners


def serve_runs(
    connection: Connection, contender: str, encoder_name: str, with_front_end: bool, turns: int, limit: float
) -> None:
    """Run a net on each length that comes through `connection`, and send back the outcome; first None, when ready."""
    encoder = make_net(contender, encoder_name, with_front_end=with_front_end).eval().encoder
    dim = None if with_front_end else encoder_config(encoder_name)["dim"]

    @torch.inference_mode()
    def run(batch: Batch) -> None:
        encoder(batch.features, batch.lengths)

    run(make_batch(1, 1.0, blocks_dim=dim))
    before = peak_memory_reset()
    connection.send(None)
    while True:
        contender_once = {contender: functools.partial(run, make_batch(1, connection.recv(), blocks_dim=dim))}
        peak_memory_reset()
        try:
            taken = race(contender_once, turns=1, warm_up=0)[contender]
            more = min(turns, int(limit / 4 / taken.seconds))  # a long run is long enough to be counted once
            if more > 1:
                taken = race(contender_once, turns=more, warm_up=0)[contender]
        except RuntimeError as error:
            connection.send(Outcome(failed=str(error).splitlines()[0][:60]))
            continue
        connection.send(Outcome(taken.cpu_seconds, peak_memory() - before))


def _rows(table: Results, runners: dict[str, Runner], size: str, seconds: int, given: argparse.Namespace) -> None:
    ours: float | None = None
    for name, (process, connection) in list(runners.items()):
        connection.send(seconds)
        outcome = _wait(process, connection, given.limit_seconds, given.limit_gb)
        ours = outcome.seconds if name == OURS else ours
        ratio = outcome.seconds and ours and outcome.seconds / ours
        peak = outcome.peak and outcome.peak / 1e9
        table.row(size, str(seconds), name, outcome.seconds, ratio, peak, outcome.failed or "yes")
        if outcome.failed:
            process.kill()
            del runners[name]


def _wait(process: BaseProcess, connection: Connection, limit_seconds: float, limit_gb: float) -> Outcome:
    """Wait for a run's outcome, at most until its process has reached a limit."""
    until = time.monotonic() + limit_seconds
    while not connection.poll(0.02):
        if process.is_alive() and peak_memory(process.pid) > 1e9 * limit_gb:
            return Outcome(failed=f"over {limit_gb:g} GB")
        if time.monotonic() > until:
            return Outcome(failed=f"over {limit_seconds:g} s")
    try:
        return connection.recv()
    except EOFError:
        return Outcome(failed="its process ended")


if __name__ == "__main__":
    run_command(main)
