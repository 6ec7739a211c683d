"""python -m benchmarks.captions MODEL AUDIO...: CPU time and latency of a live-caption server, by number of clients.

The benchmark starts a server on this machine, whose network runs on one thread. Clients send audio in real time, and
start at different times. Latency is the time from sending the last sample that an event covers to receiving the event.
"Clients per core" is the audio of all clients in seconds, divided by the server's CPU seconds. It grows with the number
of clients, because they share the batches of the network.
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

from asr.core.cli.command import run_command
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about, peak_memory, peak_memory_reset
from benchmarks.model import add_model
from benchmarks.results import Columns, Results, fixed
from benchmarks.serve import SAMPLE_RATE, Server, make_wav_files

MESSAGE_SECONDS = 0.04
WAV_HEADER = 44  # bytes, before the samples
COLUMNS: Columns = {
    "clients": str,
    "clients per core": fixed(1),
    "streams per batch": fixed(1),
    **dict.fromkeys(("p50 s", "p95 s", "p99 s"), fixed(2)),
    "words": fixed(0),
    "peak MB": fixed(0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per number of clients."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captions", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="numbers of clients, one row each (default: 1 8 32)",
    )
    parser.add_argument(
        "--seconds", type=float, default=20, metavar="S", help="seconds of audio that each client sends (default: 20)"
    )
    parser.add_argument("--chunk-seconds", type=float, metavar="S", help="length of a chunk (default: the model's)")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    recordings = [content[WAV_HEADER:] for content in make_wav_files(options.audio, options.seconds)]
    table = Results("captions", COLUMNS, bars="clients per core")
    command = _command(options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            server = _started(process, command)
            warm_up = [recording[: 2 * SAMPLE_RATE] for recording in recordings[:2]]
            asyncio.run(_run_clients(server, warm_up))
            for clients in options.clients:
                table.row(*measure(server, [recordings[number % len(recordings)] for number in range(clients)]))
        finally:
            process.terminate()
    table.save(options.output_dir, facts)
    return 0


def _command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "asr.serve", options.model, "--port", "0", "--num-threads", "1"]
    command += ["--streams", str(max(2, *options.clients))]
    return command if options.chunk_seconds is None else [*command, "--chunk-seconds", str(options.chunk_seconds)]


def _started(process: "subprocess.Popen[str]", command: list[str]) -> Server:
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    if address is None:
        raise InputError(f"the server must print its address; it did not. Run it to see its error: {' '.join(command)}")
    return Server(0, process, address[0])


def measure(server: Server, recordings: Sequence[bytes]) -> list[object]:
    """Send each recording from a client of its own; return the values of COLUMNS."""
    pid = server.process.pid
    peak_memory_reset(pid)
    counts_before = _batch_counts(server)
    cpu_start = _cpu_seconds(pid)
    client_results = asyncio.run(_run_clients(server, recordings))
    cpu_seconds = _cpu_seconds(pid) - cpu_start
    streams, batches = (after - before for after, before in zip(_batch_counts(server), counts_before, strict=True))
    lags = [lag for client_lags, _ in client_results for lag in client_lags]
    percentiles = statistics.quantiles(lags, n=100, method="inclusive") if len(lags) > 1 else [float("nan")] * 99
    latencies = [percentiles[number - 1] for number in (50, 95, 99)]
    audio_seconds = sum(map(len, recordings)) / 2 / SAMPLE_RATE  # two bytes per sample
    words = sum(number for _, number in client_results)
    clients_per_core = audio_seconds / cpu_seconds
    return [str(len(recordings)), clients_per_core, streams / batches, *latencies, words, peak_memory(pid) / 1e6]


def _batch_counts(server: Server) -> tuple[float, float]:
    """Return the total number of streams in all batches of the network so far, and the number of batches."""
    return server.metric("asr_turn_streams_sum"), server.metric("asr_turn_streams_count")


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _run_clients(server: Server, recordings: Sequence[bytes]) -> list[tuple[list[float], int]]:
    offset = MESSAGE_SECONDS * 16 / len(recordings)
    clients = (_run_client(server, samples, number * offset) for number, samples in enumerate(recordings))
    return await asyncio.gather(*clients)


async def _run_client(server: Server, samples: bytes, delay: float) -> tuple[list[float], int]:
    """After `delay` seconds, send samples in real time; return the latency of each event, and the number of words."""
    size = 2 * round(MESSAGE_SECONDS * SAMPLE_RATE)
    sending_times: list[float] = []  # time at which each message was sent
    await asyncio.sleep(delay)
    async with connect(server.address.replace("http", "ws", 1) + "/stream", compression=None) as connection:
        await connection.send(json.dumps({"sample_rate": SAMPLE_RATE}))
        receiver = asyncio.create_task(_receive(connection, sending_times))
        start = time.monotonic()
        for number, position in enumerate(range(0, len(samples), size), 1):
            await asyncio.sleep(start + number * MESSAGE_SECONDS - time.monotonic())
            await connection.send(samples[position : position + size])
            sending_times.append(time.monotonic())
        await connection.send('{"end": true}')
        return await receiver


async def _receive(connection: ClientConnection, sending_times: Sequence[float]) -> tuple[list[float], int]:
    latencies, words = [], 0
    async for message in connection:
        event = json.loads(message)
        if "error" in event:
            raise InputError(event["error"])
        if "final" in event:
            # number of the message with the event's last sample
            last_message = math.ceil(event["heard"] / MESSAGE_SECONDS - 1e-6) - 1
            sent = sending_times[min(max(0, last_message), len(sending_times) - 1)]
            latencies.append(time.monotonic() - sent)
            words += len(event["final"])
    return latencies, words


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run_command(main)
