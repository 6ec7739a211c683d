"""python -m benchmarks.bulk: parts beside plain asr.transcribe, two workers beside one, bookkeeping of a large job."""

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

from asr.bulk import folder as folder_module
from asr.bulk.fingerprints import input_fingerprint
from asr.bulk.folder import JobFolder
from asr.bulk.job import BulkJob
from asr.bulk.parts import PartTask, plan_parts
from asr.bulk.report import finish
from asr.bulk.source import open_source
from asr.bulk.statistics import part_statistics
from asr.bulk.transcription import Entry, PartResult
from asr.cli.command import run_command
from asr.data.index import write_index
from asr.data.manifest import Utterance
from asr.recognition.transcript import Alternative, Transcript, Word
from asr.system.files import write_whole
from benchmarks import results
from benchmarks.machine import about
from benchmarks.results import Results, fixed

UTTERANCE_SECONDS = 12.0  # of the simulated corpus
WORDS_PER_SECOND = 2.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk", description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    plain = what.add_parser("plain", help="parts beside plain asr.transcribe of the same manifest")
    ray = what.add_parser("ray", help="two workers of Ray beside one process")
    for each in (plain, ray):
        each.add_argument("model", metavar="MODEL")
        each.add_argument("manifest", metavar="MANIFEST")
        each.add_argument("--part-hours", type=float, default=0.1, metavar="H", help="audio of a part (0.1)")
    simulation = what.add_parser("simulate", help="a large job, of which only the recognition is made up")
    simulation.add_argument("--hours", type=float, default=10_000, metavar="H", help="of audio (10000)")
    simulation.add_argument("--gpus", type=int, default=8, metavar="N", help="workers (8)")
    simulation.add_argument("--rtfx", type=float, default=500, metavar="X", help="audio seconds a second of each (500)")
    listing = what.add_parser("listing", help="start a job whose folder has very many parts")
    listing.add_argument("--parts", type=int, default=1_000_000, metavar="N", help="in the folder (1000000)")
    for each in (plain, ray, simulation, listing):
        results.add_options(each)
    given = parser.parse_args(arguments)
    run = {"plain": _plain, "ray": _ray, "simulate": _simulate, "listing": _listing}[given.what]
    run(given).keep(given.output_dir, about(given))
    return 0


# ---- real jobs

_COLUMNS = {"way": str, "s": fixed(1), "CPU s": fixed(1), "s beside plain": fixed(3), "CPU s beside plain": fixed(3)}


def _command(given: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, "-m", "asr.transcribe", given.model, given.manifest, "--device", "cpu", *more]


def _run(command: list[str], output: Path) -> tuple[float, float]:
    """Run a command; return its seconds, and those of the processor."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("w") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, processor


def _plain(given: argparse.Namespace) -> Results:
    """Time both ways in turns, whole commands, and compare the texts."""
    table = Results("bulk_plain", _COLUMNS, bars="CPU s")
    seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "parts": []}
    for turn in range(given.turns):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            parts = ["--parts", "--part-hours", str(given.part_hours), "--output-dir", str(folder / "out")]
            ways: dict[str, Callable[[], tuple[float, float]]] = {
                "plain": lambda folder=folder: _run(_command(given, "--format", "jsonl"), folder / "plain.jsonl"),  # type: ignore[misc]
                "parts": lambda folder=folder, parts=parts: _run(_command(given, *parts), folder / "log"),  # type: ignore[misc]
            }
            for way in list(ways)[:: 1 if turn % 2 else -1]:
                seconds[way].append(ways[way]())
            expected = {entry["id"]: entry["text"] for entry in _entries(folder / "plain.jsonl")}
            files = sorted((folder / "out").glob("part-*.jsonl"))
            texts = {entry["id"]: entry["text"] for file in files for entry in _entries(file)}
            if texts != expected:
                raise RuntimeError("the texts must be equal")
    for way, times in seconds.items():
        table.row(way, *(median(column) for column in zip(*times, strict=True)), *_ratios(times, seconds["plain"]))
    return table


def _ratios(times: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]]) -> list[float]:
    """Return the medians of the turns' ratios: of seconds, and of the processor's."""
    ratios = ((mine[0] / other[0], mine[1] / other[1]) for mine, other in zip(times, plain, strict=True))
    return [median(column) for column in zip(*ratios, strict=True)]


def _ray(given: argparse.Namespace) -> Results:
    """Time two workers of a cluster of this machine, then one process; start-up is left out."""
    columns = {"workers": str, "parts": str, "hours": fixed(2), "s": fixed(1), "times real time": fixed(1)}
    table = Results("bulk_ray", columns, bars="times real time")
    texts = []
    for workers, engine in (("2, Ray", "ray"), ("1, this process", "local")):
        with tempfile.TemporaryDirectory() as name:
            out = Path(name, "out")
            options = ["--parts", "--part-hours", str(given.part_hours), "--output-dir", str(out), "--engine", engine]
            _run(_command(given, *options), Path(name, "log"))
            records = [json.loads(file.read_text()) for file in sorted((out / "records").glob("*.json"))]
            texts.append([file.read_bytes() for file in sorted(out.glob("part-*.jsonl"))])
        seconds = max(each["begun"] + each["seconds"] for each in records) - min(each["begun"] for each in records)
        audio = sum(each["audio_seconds"] for each in records)
        table.row(workers, str(len(records)), audio / 3600, seconds, audio / seconds)
    print("\nthe files are equal" if texts[0] == texts[1] else "\nTHE FILES DIFFER")
    return table


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


# ---- bookkeeping


class _Counts:
    """Requests that the bookkeeping makes of the output's store, and bytes that it writes."""

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

        def counted_listing(folder: JobFolder) -> set[str]:
            self.listings += 1
            return listed(folder)

        folder_module.write_together, folder_module.read_files = counted_write, counted_read
        JobFolder._listed = counted_listing  # type: ignore[method-assign]


def _simulate(given: argparse.Namespace) -> Results:
    """Run all of a job but recognition: index, plan, fingerprint, tasks, files, report. The GPUs' clock is made up."""
    table = Results("bulk_simulate", {"step": str, "s": fixed(2)}, bars="s")
    number = round(given.hours * 3600 / UTTERANCE_SECONDS)
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
        steps.done("plan parts, fingerprint of the input")
        identity = {
            "fingerprints": {"input": fingerprint},
            "input": str(index),
            "model": "",
            "settings": {"segments": 0},
        }
        job = BulkJob(source, plan, plan.seconds(durations), JobFolder(str(Path(name, "out"))), identity)
        job.folder.claim(identity)
        busy, waits = [0.0] * given.gpus, 0.0
        begun = time.perf_counter()

        def engine(tasks: Any) -> Iterator[PartResult]:
            for task in tasks:
                worker = heapq.heappop(busy)
                heapq.heappush(busy, worker + float(job.seconds[task.number]) / given.rtfx)
                yield _made_up(task, given.rtfx)

        made = sum(_timed(lambda task=task: _made_up(task, given.rtfx)) for task in job.tasks(range(20))) / 20  # type: ignore[misc]
        job.run(range(plan.num_parts), engine, lambda record: None)
        waits = time.perf_counter() - begun - made * (plan.num_parts + 20)
        steps.done("tasks, results made up, files")
        finish(job)
        steps.done("failures.jsonl and report.json")
        parts, hours = plan.num_parts, max(busy) / 3600
        print(
            f"\n{number:,} utterances, {parts:,} parts; {hours:.2f} h on {given.gpus} GPUs of {given.rtfx:g} s a second"
        )
        print(f"bookkeeping of a part, by the driver: {1000 * waits / parts:.1f} ms; of all: {waits:.0f} s")
        print(
            f"output: {counts.listings} listings, {counts.writes:,} writes, {counts.written_bytes / 1e9:.2f} GB, ",
            end="",
        )
        print(f"{counts.reads:,} reads")
    return table


class _Steps:
    """Rows of a table, each the seconds since the row before."""

    def __init__(self, table: Results) -> None:
        self._table, self._begun = table, time.perf_counter()

    def done(self, step: str) -> None:
        """Add a row."""
        now = time.perf_counter()
        self._table.row(step, now - self._begun)
        self._begun = now


def _timed(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def _corpus(number: int) -> Iterator[Utterance]:
    for place in range(number):
        yield Utterance(f"audio/{place:09d}.flac", UTTERANCE_SECONDS, "", f"utterance-{place:09d}")


@functools.cache
def _transcript() -> Transcript:
    words = [
        Word(f"word{place}", place / WORDS_PER_SECOND, (place + 0.8) / WORDS_PER_SECOND, 0.9)
        for place in range(round(UTTERANCE_SECONDS * WORDS_PER_SECOND))
    ]
    text = " ".join(word.text for word in words)
    return Transcript(tuple(words), (Alternative(text, -3.0),), UTTERANCE_SECONDS)


@functools.cache
def _entry() -> Entry:
    return _transcript().as_dict()


@functools.cache
def _statistics(number: int) -> Entry:
    return part_statistics([(str(place), _transcript()) for place in range(number)])


def _made_up(task: PartTask, rtfx: float) -> PartResult:
    """Make up the result of a part, as large as a real one; one utterance in a thousand fails."""
    failures = [each for each in task.utterances if each.id.endswith("000")]
    good = [each for each in task.utterances if not each.id.endswith("000")]
    texts: list[Entry] = [{"id": each.id, "audio_filepath": each.audio_filepath, **_entry()} for each in good]
    audio = UTTERANCE_SECONDS * len(good)
    record = {
        "part": task.number,
        "worker": "simulated",
        "begun": 0.0,
        "seconds": audio / rtfx,
        "waiting_seconds": 0.0,
        "audio_seconds": audio,
        "failures": [{"id": each.id, "reason": "made up"} for each in failures],
        "num_segments": 0,
        "num_torn": 0,
        **_statistics(len(good)),
    }
    return PartResult(task.number, texts, None, record)


def _listing(given: argparse.Namespace) -> Results:
    """Time how long a job needs to learn which of very many parts are done."""
    table = Results("bulk_listing", {"step": str, "s": fixed(2)}, bars="s")
    with tempfile.TemporaryDirectory() as name:
        steps = _Steps(table)
        descriptor = os.open(name, os.O_RDONLY)
        for number in range(given.parts):
            os.close(os.open(f"part-{number:07d}.jsonl", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.close(descriptor)
        steps.done("make the files (not part of the job)")
        counts = _Counts()
        folder = JobFolder(name)
        missing = [number for number in range(given.parts) if not folder.is_done(f"part-{number:07d}")]
        steps.done("list the folder, find what is missing")
        print(f"\n{counts.listings} listing, {counts.reads} reads, {len(missing)} parts missing")
    return table


if __name__ == "__main__":
    run_command(main)
