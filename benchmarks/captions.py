"""python -m benchmarks.captions MODEL AUDIO...: what a server of captions costs for each client, and how late it is.

A server, whose net has one thread, is started on this machine. Clients send in real time, each from a moment of its
own. Latency is from when the last sample that an event is made of was sent to when the event came. Clients a core are
those whose sound lasts as long as the CPU time that the server took for them; the more there are, the more are heard
together.
"""

import argparse
import asyncio
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect

from asr.cli.command import run_command
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about, peak_memory, peak_memory_reset
from benchmarks.model import add_model
from benchmarks.results import Results, fixed
from benchmarks.serve import SAMPLE_RATE, Server, cut

MESSAGE_SECONDS = 0.04
WAV_HEADER = 44  # bytes, before the samples
COLUMNS = {
    "clients": str,
    "clients a core": fixed(1),
    "streams a turn": fixed(1),
    **dict.fromkeys(("p50 s", "p95 s", "p99 s"), fixed(2)),
    "words": fixed(0),
    "peak MB": fixed(0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each number of clients."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captions", description=__doc__)
    add_model(parser)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="one row each (1 8 32)")
    parser.add_argument("--seconds", type=float, default=20, metavar="S", help="that each speaks (20)")
    parser.add_argument("--chunk-seconds", type=float, metavar="S", help="heard at once (default: the model's)")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    spoken = [content[WAV_HEADER:] for content in cut(given.audio, given.seconds)]
    table = Results("captions", COLUMNS, bars="clients a core")
    with subprocess.Popen(_command(given), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            server = _started(process)
            asyncio.run(_together(server, [each[: 2 * SAMPLE_RATE] for each in spoken[:2]]))  # what is made at first
            for clients in given.clients:
                table.row(*measure(server, [spoken[number % len(spoken)] for number in range(clients)]))
        finally:
            process.terminate()
    table.keep(given.output_dir, facts)
    return 0


def _command(given: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "asr.serve", given.model, "--port", "0", "--num-threads", "1"]
    command += ["--streams", str(max(2, *given.clients))]
    return command if given.chunk_seconds is None else [*command, "--chunk-seconds", str(given.chunk_seconds)]


def _started(process: "subprocess.Popen[str]") -> Server:
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    if found is None:
        raise InputError(f"the server must start; it did not. Run it by hand: {' '.join(map(str, process.args))}")
    return Server(0, process, found[0])


def measure(server: Server, spoken: Sequence[bytes]) -> list[object]:
    """The values of COLUMNS."""
    pid = server.process.pid
    peak_memory_reset(pid)
    turns = _turns(server)
    before = _cpu_seconds(pid)
    told = asyncio.run(_together(server, spoken))
    taken = _cpu_seconds(pid) - before
    streams, count = (now - then for now, then in zip(_turns(server), turns, strict=True))
    lags = [lag for each, _ in told for lag in each]
    percentiles = statistics.quantiles(lags, n=100, method="inclusive") if len(lags) > 1 else [float("nan")] * 99
    latencies = [percentiles[number - 1] for number in (50, 95, 99)]
    seconds = sum(map(len, spoken)) / 2 / SAMPLE_RATE
    words = sum(number for _, number in told)
    return [str(len(spoken)), seconds / taken, streams / count, *latencies, words, peak_memory(pid) / 1e6]


def _turns(server: Server) -> tuple[float, float]:
    """How many streams there were in turns, and how many turns."""
    return server.metric("asr_turn_streams_sum"), server.metric("asr_turn_streams_count")


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _together(server: Server, spoken: Sequence[bytes]) -> list[tuple[list[float], int]]:
    apart = MESSAGE_SECONDS * 16 / len(spoken)
    return await asyncio.gather(*(_speak(server, samples, number * apart) for number, samples in enumerate(spoken)))


async def _speak(server: Server, samples: bytes, begin: float) -> tuple[list[float], int]:
    """Send it in real time; how late each event was, and how many words were final."""
    size = 2 * round(MESSAGE_SECONDS * SAMPLE_RATE)
    sent: list[float] = []  # when each message was
    await asyncio.sleep(begin)
    async with connect(server.address.replace("http", "ws", 1) + "/stream", compression=None) as connection:
        await connection.send(json.dumps({"sample_rate": SAMPLE_RATE}))
        telling = asyncio.create_task(_listen(connection, sent))
        start = time.monotonic()
        for number, at in enumerate(range(0, len(samples), size), 1):
            await asyncio.sleep(start + number * MESSAGE_SECONDS - time.monotonic())
            await connection.send(samples[at : at + size])
            sent.append(time.monotonic())
        await connection.send('{"end": true}')
        return await telling


async def _listen(connection: ClientConnection, sent: Sequence[float]) -> tuple[list[float], int]:
    late, words = [], 0
    async for message in connection:
        event = json.loads(message)
        if "error" in event:
            raise InputError(event["error"])
        if "final" in event:
            last = math.ceil(event["heard"] / MESSAGE_SECONDS - 1e-6) - 1  # message that its last sample was in
            late.append(time.monotonic() - sent[min(max(0, last), len(sent) - 1)])
            words += len(event["final"])
    return late, words


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run_command(main)
