"""python -m benchmarks.bulk: overhead of --parts, of Ray workers, and of the bookkeeping of large jobs."""

import argparse
import functools
import heapq
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from asr.apps.bulk import folder as folder_module
from asr.apps.bulk.fingerprints import input_fingerprint
from asr.apps.bulk.folder import JobFolder
from asr.apps.bulk.job import BulkJob
from asr.apps.bulk.parts import PartTask, plan_parts
from asr.apps.bulk.report import finish
from asr.apps.bulk.source import open_source
from asr.apps.bulk.statistics import part_statistics
from asr.apps.bulk.transcription import Entry, PartResult
from asr.base.system.files import write_whole
from asr.core.cli.command import run_command
from asr.core.data.index import write_index
from asr.core.data.manifest import Utterance
from asr.core.recognition.transcript import Alternative, Transcript, Word
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed

UTTERANCE_SECONDS = 12.0  # length of each utterance of the simulated corpus
WORDS_PER_SECOND = 2.5
NUM_TIMED = 20  # parts whose simulation is timed, to subtract its time from that of the driver


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark named by the first argument."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    plain = commands.add_parser("plain", help="compare --parts with plain asr.transcribe of a manifest")
    ray = commands.add_parser("ray", help="compare two Ray workers with one process")
    for command in (plain, ray):
        command.add_argument("model", metavar="MODEL")
        command.add_argument("manifest", metavar="MANIFEST")
        command.add_argument(
            "--part-hours", type=float, default=0.1, metavar="H", help="hours of audio in a part (default: 0.1)"
        )
    simulation = commands.add_parser("simulate", help="run a large job with simulated recognition")
    simulation.add_argument(
        "--hours", type=float, default=10_000, metavar="H", help="hours of audio in the corpus (default: 10000)"
    )
    simulation.add_argument("--gpus", type=int, default=8, metavar="N", help="number of simulated workers (default: 8)")
    simulation.add_argument(
        "--rtfx", type=float, default=500, metavar="X", help="audio seconds per second per worker (default: 500)"
    )
    listing = commands.add_parser("listing", help="start a job in a folder with many finished parts")
    listing.add_argument(
        "--parts",
        type=int,
        default=1_000_000,
        metavar="N",
        help="number of finished parts in the folder (default: 1000000)",
    )
    for command in (plain, ray, simulation, listing):
        results.add_options(command)
    options = parser.parse_args(arguments)
    run = {"plain": _plain, "ray": _ray, "simulate": _simulate, "listing": _listing}[options.command]
    run(options).save(options.output_dir, about(options))
    return 0


# ---- real jobs

_COLUMNS: Columns = {"command": str, "s": fixed(1), "CPU s": fixed(1), "s, ratio to plain": fixed(3)}
_COLUMNS |= {"CPU s, ratio to plain": fixed(3)}


def _command(options: argparse.Namespace, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "asr.transcribe", options.model, options.manifest, "--device", "cpu", *arguments]


def _run(command: list[str], output: Path) -> tuple[float, float]:
    """Run a command with its output in a file; return its seconds and its CPU seconds."""
    start, usage_before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("w") as file:
        process = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    return time.perf_counter() - start, cpu_seconds


def _plain(options: argparse.Namespace) -> Results:
    """Time whole commands alternately with and without --parts, and compare their texts."""
    table = Results("bulk_plain", _COLUMNS, bars="CPU s")
    seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "parts": []}
    for turn in range(options.turns):
        with tempfile.TemporaryDirectory() as temporary_dir:
            folder = Path(temporary_dir)
            parts = ["--parts", "--part-hours", str(options.part_hours), "--output-dir", str(folder / "out")]
            commands: dict[str, Callable[[], tuple[float, float]]] = {
                "plain": lambda folder=folder: _run(_command(options, "--format", "jsonl"), folder / "plain.jsonl"),  # type: ignore[misc]
                "parts": lambda folder=folder, parts=parts: _run(_command(options, *parts), folder / "log"),  # type: ignore[misc]
            }
            for name in list(commands)[:: 1 if turn % 2 else -1]:
                seconds[name].append(commands[name]())
            expected = {entry["id"]: entry["text"] for entry in _entries(folder / "plain.jsonl")}
            files = sorted((folder / "out").glob("part-*.jsonl"))
            texts = {entry["id"]: entry["text"] for file in files for entry in _entries(file)}
            if texts != expected:
                raise RuntimeError("texts with and without --parts must be equal; they differ.")
    for name, times in seconds.items():
        table.row(name, *(median(column) for column in zip(*times, strict=True)), *_ratios(times, seconds["plain"]))
    return table


def _ratios(times: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]]) -> list[float]:
    """Return the median ratio to `plain` over the turns, once for seconds and once for CPU seconds."""
    ratios = ((turn[0] / base[0], turn[1] / base[1]) for turn, base in zip(times, plain, strict=True))
    return [median(column) for column in zip(*ratios, strict=True)]


def _ray(options: argparse.Namespace) -> Results:
    """Time two workers of a Ray cluster on this machine, then one process; start-up is not timed."""
    columns: Columns = {"workers": str, "parts": str, "hours": fixed(2), "s": fixed(1), "audio s/s": fixed(1)}
    table = Results("bulk_ray", columns, bars="audio s/s")
    texts = []
    for workers, engine in (("2, Ray", "ray"), ("1, this process", "local")):
        with tempfile.TemporaryDirectory() as name:
            out = Path(name, "out")
            arguments = [
                "--parts",
                "--part-hours",
                str(options.part_hours),
                "--output-dir",
                str(out),
                "--engine",
                engine,
            ]
            _run(_command(options, *arguments), Path(name, "log"))
            records = [json.loads(file.read_text()) for file in sorted((out / "records").glob("*.json"))]
            texts.append([file.read_bytes() for file in sorted(out.glob("part-*.jsonl"))])
        seconds = max(record["begun"] + record["seconds"] for record in records) - min(
            record["begun"] for record in records
        )
        audio = sum(record["audio_seconds"] for record in records)
        table.row(workers, str(len(records)), audio / 3600, seconds, audio / seconds)
    print("\nthe files are equal" if texts[0] == texts[1] else "\nTHE FILES DIFFER")
    return table


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


# ---- bookkeeping


class _Counts:
    """Counts the requests to the output's store, and the bytes written to it, after this object is created."""

    def __init__(self) -> None:
        self.writes = self.reads = self.listings = self.written_bytes = 0
        write, read, listed = folder_module.write_together, folder_module.read_files, JobFolder._listed

        def counted_write(path: str, content: bytes, *, is_new: bool = False) -> bool:
            self.writes += 1
            self.written_bytes += len(content)
            return write(path, content, is_new=is_new)

        def counted_read(paths: Sequence[str]) -> list[bytes]:
            self.reads += len(paths)
            return read(paths)

        def counted_listing(folder: JobFolder) -> dict[str, int]:
            self.listings += 1
            return listed(folder)

        folder_module.write_together, folder_module.read_files = counted_write, counted_read
        JobFolder._listed = counted_listing  # type: ignore[method-assign, assignment]


def _simulate(options: argparse.Namespace) -> Results:
    """Run a job with simulated recognition and simulated GPU time; all other steps are real."""
    table = Results("bulk_simulate", {"step": str, "s": fixed(2)}, bars="s")
    number = round(options.hours * 3600 / UTTERANCE_SECONDS)
    with tempfile.TemporaryDirectory() as name:
        counts = _Counts()
        steps = _Steps(table)
        index = Path(name, "index.arrow")
        write_whole(index, lambda file: write_index(file, _corpus(number), "simulated"))
        steps.done("write the index (not part of the job)")
        source = open_source(str(index))
        steps.done("open the index, check ids")
        durations = source.utterances.durations
        plan = plan_parts(durations, 3600)
        fingerprint = input_fingerprint(source)
        steps.done("plan parts, compute the input's fingerprint")
        identity = {
            "fingerprints": {"input": fingerprint},
            "input": str(index),
            "model": "",
            "settings": {"segments": 0},
        }
        job = BulkJob(source, plan, plan.seconds(durations), JobFolder(str(Path(name, "out"))), identity)
        job.folder.claim(identity)
        busy_seconds = [0.0] * options.gpus
        start = time.perf_counter()

        def engine(tasks: Any) -> Iterator[PartResult]:
            for task in tasks:
                finish_time = heapq.heappop(busy_seconds)
                heapq.heappush(busy_seconds, finish_time + float(job.seconds[task.number]) / options.rtfx)
                yield _simulated_result(task, options.rtfx)

        first_tasks = [*job.tasks(range(min(NUM_TIMED, plan.num_parts)))]
        simulation_start = time.perf_counter()
        for task in first_tasks:
            _simulated_result(task, options.rtfx)
        simulation_seconds = (time.perf_counter() - simulation_start) / len(first_tasks)
        job.run(range(plan.num_parts), engine, accept_failures=True, on_part=lambda record: None)
        driver_seconds = time.perf_counter() - start - simulation_seconds * (plan.num_parts + len(first_tasks))
        steps.done("tasks, simulated results, files")
        finish(job)
        steps.done("failures.jsonl and report.json")
        parts, hours = plan.num_parts, max(busy_seconds) / 3600
        print(
            f"\n{number:,} utterances, {parts:,} parts; {hours:.2f} h, {options.gpus} GPUs, {options.rtfx:g} audio s/s"
        )
        print(
            f"bookkeeping in the driver: {1000 * driver_seconds / parts:.1f} ms per part, {driver_seconds:.0f} s in all"
        )
        print(
            f"output: {counts.listings} listings, {counts.writes:,} writes, {counts.written_bytes / 1e9:.2f} GB, ",
            end="",
        )
        print(f"{counts.reads:,} reads")
    return table


class _Steps:
    """Adds rows to a table, each with the seconds since the previous row."""

    def __init__(self, table: Results) -> None:
        self._table, self._start = table, time.perf_counter()

    def done(self, step: str) -> None:
        """Add the row of a step that has just finished."""
        now = time.perf_counter()
        self._table.row(step, now - self._start)
        self._start = now


def _corpus(number: int) -> Iterator[Utterance]:
    for index in range(number):
        yield Utterance(f"audio/{index:09d}.flac", UTTERANCE_SECONDS, "", f"utterance-{index:09d}")


@functools.cache
def _transcript() -> Transcript:
    words = [
        Word(f"word{index}", index / WORDS_PER_SECOND, (index + 0.8) / WORDS_PER_SECOND, 0.9)
        for index in range(round(UTTERANCE_SECONDS * WORDS_PER_SECOND))
    ]
    text = " ".join(word.text for word in words)
    return Transcript(tuple(words), (Alternative(text, -3.0),), UTTERANCE_SECONDS)


@functools.cache
def _entry() -> Entry:
    return _transcript().as_dict()


@functools.cache
def _statistics(number: int) -> Entry:
    return part_statistics([(str(index), _transcript()) for index in range(number)])


def _simulated_result(task: PartTask, rtfx: float) -> PartResult:
    """Return a simulated result of a part, as large as a real one; one utterance in a thousand fails."""
    failed = [utterance for utterance in task.utterances if utterance.id.endswith("000")]
    recognized = [utterance for utterance in task.utterances if not utterance.id.endswith("000")]
    texts: list[Entry] = [
        {"id": utterance.id, "audio_filepath": utterance.audio_filepath, **_entry()} for utterance in recognized
    ]
    audio = UTTERANCE_SECONDS * len(recognized)
    record = {
        "part": task.number,
        "worker": "simulated",
        "begun": 0.0,
        "seconds": audio / rtfx,
        "waiting_seconds": 0.0,
        "audio_seconds": audio,
        "failures": [{"id": utterance.id, "reason": "simulated"} for utterance in failed],
        "num_segments": 0,
        "num_torn": 0,
        **_statistics(len(recognized)),
    }
    return PartResult(task.number, texts, None, record)


def _listing(options: argparse.Namespace) -> Results:
    """Time how long a job takes to find the missing parts in a folder with many finished parts."""
    table = Results("bulk_listing", {"step": str, "s": fixed(2)}, bars="s")
    with tempfile.TemporaryDirectory() as name:
        steps = _Steps(table)
        descriptor = os.open(name, os.O_RDONLY)
        for number in range(options.parts):
            os.close(os.open(f"part-{number:07d}.jsonl", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.close(descriptor)
        steps.done("make the files (not part of the job)")
        counts = _Counts()
        folder = JobFolder(name)
        missing = [number for number in range(options.parts) if not folder.is_done(f"part-{number:07d}")]
        steps.done("list the folder, find missing parts")
        print(f"\n{counts.listings} listing, {counts.reads} reads, {len(missing)} parts missing")
    return table


if __name__ == "__main__":
    run_command(main)
