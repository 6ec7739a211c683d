"""python -m benchmarks.serve MODEL AUDIO...: what load a server holds, with batching and without.

A server for each `--max-batch` is started on this machine and left running; the others rest while one is asked. Each
client sends its next recording as soon as it has the answer to its last. Recordings are cut to the same length.
"""

import argparse
import contextlib
import io
import itertools
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx
import soundfile
import torch

from asr.audio.load import load_waveform
from asr.cli.command import run_command
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about, peak_memory, peak_memory_reset
from benchmarks.model import add_model, read_utterances
from benchmarks.results import Results, fixed

SAMPLE_RATE = 16000  # of what is sent, 16-bit WAV
NUM_RECORDINGS = 16  # different ones
LEAST_REQUESTS = 32  # of a cell; else so many for each client:
REQUESTS_A_CLIENT = 4
PATIENCE = 600  # seconds
COLUMNS = {
    "clients": str,
    "max batch": str,
    "requests": fixed(0),
    "requests/s": fixed(1),
    "audio s/s": fixed(0),
    **dict.fromkeys(("p50 s", "p95 s", "p99 s"), fixed(2)),
    "batch": fixed(1),
    "peak MB": fixed(0),
}


@dataclass
class Server:
    """A server process, and what it is to be told by."""

    max_batch: int
    process: "subprocess.Popen[str]"
    address: str

    def metric(self, name: str) -> float:
        """Read a metric without labels."""
        text = httpx.get(f"{self.address}/metrics", timeout=PATIENCE).text
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    def batches(self) -> tuple[float, float]:
        """How many recordings there were, in how many batches."""
        return self.metric("asr_batch_recordings_sum"), self.metric("asr_batch_recordings_count")


@dataclass
class Cell:
    """What was measured of so many clients at one server, over all turns."""

    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # requests a second, of each turn
    batches: list[float] = field(default_factory=list)
    megabytes: float = 0.0

    def row(self, clients: int, max_batch: int, seconds: float) -> list[object]:
        """The values of COLUMNS."""
        rate = statistics.median(self.rates)
        percentiles = statistics.quantiles(self.latencies, n=100, method="inclusive")
        latencies = [percentiles[number - 1] for number in (50, 95, 99)]
        counted = [str(clients), str(max_batch), len(self.latencies), rate, rate * seconds]
        return [*counted, *latencies, statistics.mean(self.batches), self.megabytes]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each number of clients and each server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    add_model(parser)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N")
    parser.add_argument("--max-batch", type=int, nargs="+", default=[1, 8], metavar="N", help="of each server (1 8)")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="length of a recording (10)")
    parser.add_argument("--num-threads", type=int, metavar="N", help="of each server's net (torch's choice)")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    given = parser.parse_args(arguments)
    facts = about(given)
    recordings = cut(given.audio, given.seconds)
    cells: dict[tuple[int, int], Cell] = {}
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(serving(given, number)) for number in given.max_batch]
        for server in servers:
            ask(server, recordings, clients=2, requests=8)  # what is made when it is first used
        for _, clients, server in itertools.product(range(given.turns), given.clients, servers):
            measure(cells.setdefault((clients, server.max_batch), Cell()), server, recordings, clients)
    table = Results("serve", COLUMNS, bars="requests/s", within=("clients",))
    for (clients, max_batch), cell in cells.items():
        table.row(*cell.row(clients, max_batch, given.seconds))
    table.keep(given.output_dir, facts)
    return 0


def cut(paths: Sequence[str], seconds: float) -> list[bytes]:
    """Make WAV files of this length out of recordings, one after the other."""
    length = round(seconds * SAMPLE_RATE)
    files, waveform = [], torch.zeros(0)
    for one in itertools.cycle(read_utterances(paths)):
        duration = None if one.offset is None else one.duration
        loaded = load_waveform(one.audio_filepath, SAMPLE_RATE, offset=one.offset, duration=duration)
        waveform = torch.cat([waveform, loaded])
        while len(waveform) >= length:
            file = io.BytesIO()
            soundfile.write(file, waveform[:length].numpy(), SAMPLE_RATE, subtype="PCM_16", format="WAV")
            files.append(file.getvalue())
            waveform = waveform[length:]
            if len(files) == NUM_RECORDINGS:
                return files
    raise InputError("AUDIO must hold at least one utterance; it holds none.")


@contextlib.contextmanager
def serving(given: argparse.Namespace, max_batch: int) -> Iterator[Server]:
    """Start a server that takes as many clients as there will be, and end it."""
    command = [sys.executable, "-m", "asr.serve", given.model, "--port", "0", "--device", "auto"]
    command += [
        "--max-batch",
        str(max_batch),
        "--queue",
        str(max(given.clients)),
        "--max-seconds",
        str(given.seconds + 1),
    ]
    if given.num_threads:
        command += ["--num-threads", str(given.num_threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise InputError(f"the server must start; it did not. Run it by hand: {' '.join(command[1:])}")
        yield Server(max_batch, process, found[0])
    finally:
        process.terminate()
        process.wait()


def ask(server: Server, recordings: Sequence[bytes], clients: int, requests: int) -> list[float]:
    """Have clients send so many recordings between them; return how long each answer took, in seconds."""
    numbers = iter(range(requests))
    latencies: list[float] = []
    failures: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        with httpx.Client(timeout=PATIENCE) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                content = recordings[number % len(recordings)]
                began = time.perf_counter()
                response = client.post(f"{server.address}/transcribe", files={"file": ("a.wav", content)})
                took = time.perf_counter() - began
                with lock:
                    latencies.append(took)
                    if response.status_code != 200:
                        failures.append(response.text)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise InputError(f"every request must be answered; {len(failures)} of {requests} were not: {failures[0]}")
    return latencies


def measure(cell: Cell, server: Server, recordings: Sequence[bytes], clients: int) -> None:
    """Add one turn to a cell."""
    requests = max(LEAST_REQUESTS, REQUESTS_A_CLIENT * clients)
    peak_memory_reset(server.process.pid)
    before = server.batches()
    began = time.perf_counter()
    cell.latencies += ask(server, recordings, clients, requests)
    cell.rates.append(requests / (time.perf_counter() - began))
    recognized, batches = (now - then for now, then in zip(server.batches(), before, strict=True))
    cell.batches.append(recognized / batches)
    cell.megabytes = max(cell.megabytes, peak_memory(server.process.pid) / 1e6)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run_command(main)
