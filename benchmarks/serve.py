"""python -m benchmarks.serve MODEL AUDIO...: throughput and latency of a server, with and without batching.

The benchmark starts one server per --max-batch on this machine. The servers take turns; while one is measured, the
others are idle. Each client sends its next recording once the previous one is answered. All recordings are
equally long.
"""

import argparse
import contextlib
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
import torch

from asr.base.audio.encode import encode_audio
from asr.base.audio.load import load_waveform
from asr.core.cli.command import run_command
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about, peak_memory, peak_memory_reset
from benchmarks.model import add_model, read_utterances
from benchmarks.results import Columns, Results, fixed

SAMPLE_RATE = 16000  # sample rate of the recordings, which are 16-bit WAV
NUM_RECORDINGS = 16  # distinct recordings
MIN_REQUESTS = 32  # requests per turn, if REQUESTS_PER_CLIENT gives fewer
REQUESTS_PER_CLIENT = 4
TIMEOUT_SECONDS = 600
COLUMNS: Columns = {
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
    """A server process, its --max-batch and its address."""

    max_batch: int
    process: "subprocess.Popen[str]"
    address: str

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        text = httpx.get(f"{self.address}/metrics", timeout=TIMEOUT_SECONDS).text
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    def batches(self) -> tuple[float, float]:
        """Return the total number of recordings in all batches so far, and the number of batches."""
        return self.metric("asr_batch_recordings_sum"), self.metric("asr_batch_recordings_count")


@dataclass
class Cell:
    """Measurements with one server and one number of clients: a cell of the table, over all turns.

    Args:
        latencies: seconds of each request.
        rates: requests per second of each turn.
        batches: mean number of recordings in a batch, of each turn.
        megabytes: peak memory of the server.
    """

    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    megabytes: float = 0.0

    def row(self, clients: int, max_batch: int, seconds: float) -> list[object]:
        """Return the values of COLUMNS; `seconds` is the length of a recording."""
        rate = statistics.median(self.rates)
        percentiles = statistics.quantiles(self.latencies, n=100, method="inclusive")
        latencies = [percentiles[number - 1] for number in (50, 95, 99)]
        counts = [str(clients), str(max_batch), len(self.latencies), rate, rate * seconds]
        return [*counts, *latencies, statistics.mean(self.batches), self.megabytes]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per number of clients and server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="numbers of clients"
    )
    parser.add_argument(
        "--max-batch",
        type=int,
        nargs="+",
        default=[1, 8],
        metavar="N",
        help="--max-batch of each server (default: 1 8)",
    )
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="length of a recording (default: 10)")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of each server (default: torch's)")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    facts = about(options)
    recordings = make_wav_files(options.audio, options.seconds)
    cells: dict[tuple[int, int], Cell] = {}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(start_server(options, number)) for number in options.max_batch]
        for server in servers:
            send_requests(server, recordings, clients=2, requests=8)  # warm-up
        for _, clients, server in itertools.product(range(options.turns), options.clients, servers):
            measure(cells.setdefault((clients, server.max_batch), Cell()), server, recordings, clients)
    table = Results("serve", COLUMNS, bars="requests/s", group_by=("clients",))
    for (clients, max_batch), cell in cells.items():
        table.row(*cell.row(clients, max_batch, options.seconds))
    table.save(options.output_dir, facts)
    return 0


def make_wav_files(paths: Sequence[str], seconds: float) -> list[bytes]:
    """Concatenate recordings, and cut them into WAV files of `seconds` each."""
    length = round(seconds * SAMPLE_RATE)
    files, waveform = [], torch.zeros(0)
    for utterance in itertools.cycle(read_utterances(paths)):
        offset, duration = utterance.offset, None if utterance.offset is None else utterance.duration
        audio = load_waveform(utterance.audio_filepath, SAMPLE_RATE, offset=offset, duration=duration)
        waveform = torch.cat([waveform, audio])
        while len(waveform) >= length:
            files.append(encode_audio(waveform[:length].numpy(), SAMPLE_RATE, "WAV", "PCM_16"))
            waveform = waveform[length:]
            if len(files) == NUM_RECORDINGS:
                return files
    raise InputError("AUDIO must contain at least one utterance; it contains none.")


@contextlib.contextmanager
def start_server(options: argparse.Namespace, max_batch: int) -> Iterator[Server]:
    """Run a server whose queue has room for all clients; stop it at the end of the context."""
    command = [sys.executable, "-m", "asr.serve", options.model, "--port", "0", "--device", "auto"]
    command += [
        "--max-batch",
        str(max_batch),
        "--queue",
        str(max(options.clients)),
        "--max-seconds",
        str(options.seconds + 1),
    ]
    if options.num_threads:
        command += ["--num-threads", str(options.num_threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        if address is None:
            command_line = " ".join(command[1:])
            raise InputError(f"the server must print its address; it did not. Run it to see its error: {command_line}")
        yield Server(max_batch, process, address[0])
    finally:
        process.terminate()
        process.wait()


def send_requests(server: Server, recordings: Sequence[bytes], clients: int, requests: int) -> list[float]:
    """Send `requests` recordings in total from parallel clients; return the seconds until each response."""
    numbers = iter(range(requests))
    latencies: list[float] = []
    failures: list[str] = []
    lock = threading.Lock()

    def run_client() -> None:
        with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                content = recordings[number % len(recordings)]
                start = time.perf_counter()
                response = client.post(f"{server.address}/transcribe", files={"file": ("a.wav", content)})
                latency = time.perf_counter() - start
                with lock:
                    latencies.append(latency)
                    if response.status_code != 200:
                        failures.append(response.text)

    threads = [threading.Thread(target=run_client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise InputError(f"every request must succeed; {len(failures)} of {requests} failed: {failures[0]}")
    return latencies


def measure(cell: Cell, server: Server, recordings: Sequence[bytes], clients: int) -> None:
    """Send one round of requests to the server; add its latencies, rate, batch size and memory to `cell`."""
    requests = max(MIN_REQUESTS, REQUESTS_PER_CLIENT * clients)
    peak_memory_reset(server.process.pid)
    counts_before = server.batches()
    start = time.perf_counter()
    cell.latencies += send_requests(server, recordings, clients, requests)
    cell.rates.append(requests / (time.perf_counter() - start))
    recordings_done, batches = (after - before for after, before in zip(server.batches(), counts_before, strict=True))
    cell.batches.append(recordings_done / batches)
    cell.megabytes = max(cell.megabytes, peak_memory(server.process.pid) / 1e6)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    run_command(main)
