"""Bulk jobs of asr.transcribe: options, dry run, progress."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asr.cli.command import decoder, finite, load_model, progress_bar
from asr.errors import InputError
from asr.text.numbers import counted, duration

if TYPE_CHECKING:
    from asr.bulk.job import BulkJob, Engine
    from asr.data.manifest import Utterance
    from asr.recognition.inference import Inference
    from asr.recognition.recognizer import Recognizer

LINE_SECONDS = 10.0  # between two lines of progress, where no one sees a bar
SAMPLE_SECONDS, MAX_SAMPLED = 60.0, 20  # of audio and utterances that a dry run times
NEEDS_PARTS = ("part", "segments", "dry_run", "engine", "address")  # options that go with --parts


def add_bulk(parser: argparse.ArgumentParser) -> None:
    """Add the options of bulk jobs."""
    bulk = parser.add_argument_group(
        "bulk jobs (one PATH; --output-dir may be a URL; started again they resume)",
    )
    bulk.add_argument(
        "--parts", action="store_true", help="write a file for each part of the input, whole or not at all"
    )
    bulk.add_argument("--part-hours", type=finite, default=1.0, metavar="H", help="audio of a part (default 1)")
    bulk.add_argument("--part", metavar="K/N", help="only the K-th of N shares of the parts, for SLURM arrays")
    bulk.add_argument("--segments", action="store_true", help="also write segments cut at silences, to train on")
    bulk.add_argument("--dry-run", action="store_true", help="print parts, hours, expected time, requests; no texts")
    bulk.add_argument("--engine", choices=("local", "ray"), help="this process (default), or a Ray cluster")
    bulk.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster, or auto; default: a new one, here")


def check_bulk(options: argparse.Namespace) -> None:
    """Check that the options of a bulk job fit together."""
    if not options.parts:
        for key in NEEDS_PARTS:
            if getattr(options, key):
                raise InputError(f"--{key.replace('_', '-')} must go with --parts; it is not there.")
        return
    if len(options.paths) != 1:
        raise InputError(f"--parts must have one PATH; got {len(options.paths)}. Write a manifest of all.")
    if options.output_dir is None:
        raise InputError("--parts must have --output-dir, a folder or a URL; it is not there.")
    if options.format not in ("txt", "jsonl"):  # txt: not given
        raise InputError(f"--format must be jsonl with --parts; got {options.format}.")
    if options.stream:
        raise InputError("--stream must go without --parts, which recognise recordings as a whole.")
    if not options.part_hours > 0:
        raise InputError(f"--part-hours must be positive; got {options.part_hours:g}.")
    if options.address and options.engine != "ray":
        raise InputError("--address must go with --engine ray; it is not there.")


def run_bulk(
    options: argparse.Namespace, inference: "Inference", check: "Callable[[Recognizer], None]"
) -> "BulkJob | None":
    """Run a bulk job, or show what it would do; return the job if all of its parts are done.

    Args:
        options: of the command.
        inference: bounds of memory.
        check: that the recogniser suits the options.
    """
    from asr.bulk.job import JobSettings, open_job
    from asr.bulk.parts import share_of

    settings = JobSettings(options.part_hours, options.segments, inference, options.precision, options.segment)
    job = open_job(options.paths[0], str(options.output_dir), options.model, decoder(options), settings)
    share = share_of(options.part, job.plan.num_parts)
    missing = job.missing(share)
    if options.dry_run:
        _show(job, missing, len(share), load_model(options), inference)
        return None
    job.folder.claim(job.identity)
    _say(_summary(job, missing, len(share)))
    if missing:
        with _progress(job, missing) as progress:
            engine = _engine(options, inference, check, progress, job.identity["fingerprints"]["model"])
            job.run(missing, engine, progress.on_part)
        if len(share) < job.plan.num_parts:
            job.folder.list_again()
    return job if not job.missing(range(job.plan.num_parts)) else None


def _engine(
    options: argparse.Namespace,
    inference: "Inference",
    check: "Callable[[Recognizer], None]",
    progress: "_Progress",
    model: str,
) -> "Engine":
    """Return the engine that the options name; `model` is the fingerprint of the model."""
    if options.engine == "ray":
        from asr.bulk.ray_engine import Worker, transcribe_on_ray

        load = partial(_load_same, options, check, model)
        key = f"{model} {options.device} {options.precision}"
        worker = Worker(key, load, inference, options.segments)
        return partial(transcribe_on_ray, worker=worker, address=options.address, device=options.device)
    from asr.bulk.local import transcribe_locally

    recognizer = load_model(options)
    check(recognizer)
    return partial(
        transcribe_locally,
        recognizer=recognizer,
        inference=inference,
        with_segments=options.segments,
        on_progress=progress.on_audio,
    )


def _load_same(options: argparse.Namespace, check: "Callable[[Recognizer], None]", expected: str) -> "Recognizer":
    """Load the model in a worker, on whatever machine.

    Raises:
        InputError: the model there is not that of the job.
    """
    from asr.bulk.fingerprints import model_fingerprint

    if model_fingerprint(options.model, decoder(options)) != expected:
        raise InputError(f"MODEL must be the same on all machines of the cluster; {options.model} here is another.")
    recognizer = load_model(options)
    check(recognizer)
    return recognizer


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _summary(job: "BulkJob", missing: Sequence[int], num_share: int) -> str:
    about = "" if job.source.is_measured else "about "
    size = f"{counted(len(job.source.utterances), 'utterance')}, {about}{job.source.utterances.hours:.2f} h"
    share = "" if num_share == job.plan.num_parts else f"; this share has {num_share:,}"
    done = num_share - len(missing)
    return f"{size}, in {counted(job.plan.num_parts, 'part')}{share}; {done:,} done, {len(missing):,} to do"


def _show(
    job: "BulkJob", missing: Sequence[int], num_share: int, recognizer: "Recognizer", inference: "Inference"
) -> None:
    """Print what a job would do."""
    seconds = float(job.seconds[list(missing)].sum()) if missing else 0.0
    print(_summary(job, missing, num_share))
    for name in ("input", "model"):
        print(f"{name}: {job.identity[name]}")
    sampled, rate = _measured_rate(job, recognizer, inference)
    if rate is None:
        print(f"expected time: unknown, none of {counted(sampled, 'utterance')} could be recognised")
    else:
        how = f"{rate:.1f} times real time on {counted(sampled, 'utterance')}"
        print(f"expected time: {duration(seconds / rate)} for one worker such as this one ({how}), start-up apart")
    reads = sum(job.plan.rows(number).stop - job.plan.rows(number).start for number in missing)
    files = 3 if job.identity["settings"]["segments"] else 2
    print(
        f"requests: {reads:,} reads of audio at most, {files * len(missing):,} writes, 2 to start, "
        f"{job.plan.num_parts + 4:,} for the report"
    )


def _measured_rate(job: "BulkJob", recognizer: "Recognizer", inference: "Inference") -> tuple[int, float | None]:
    """Recognise a few utterances, evenly spread; return their number, and seconds of audio in a second."""
    import numpy as np

    from asr.bulk.parts import PartTask
    from asr.bulk.transcription import transcribe_part

    number = len(job.source.utterances)
    places = np.unique(np.linspace(0, number - 1, MAX_SAMPLED).round().astype(int))
    sample: list[Utterance] = []
    total = 0.0
    for place in places.tolist():
        utterance = job.source.utterances[place]
        if sample and total + utterance.duration > SAMPLE_SECONDS:
            continue
        sample.append(utterance)
        total += utterance.duration
    task = PartTask(0, sample, job.source.is_measured, {})
    transcribe_part(recognizer, PartTask(0, sample[:1], job.source.is_measured, {}), inference, False)  # warms up
    record = transcribe_part(recognizer, task, inference, False).record
    return len(sample), record["audio_seconds"] / record["seconds"] if record["audio_seconds"] else None


@contextmanager
def _progress(job: "BulkJob", missing: Sequence[int]) -> "Iterator[_Progress]":
    with progress_bar() as bar:
        yield _Progress(job, missing, bar)


class _Progress:
    """Hours done, rate, failures and time left: a bar on a terminal, else a line now and then.

    Args:
        job: that is run.
        missing: parts that are to be done.
        bar: that shows it.
    """

    def __init__(self, job: "BulkJob", missing: Sequence[int], bar: Any) -> None:
        self._job, self._bar = job, bar
        self._total = float(job.seconds[list(missing)].sum())
        self._left, self._done = len(missing), 0.0
        self._failures = 0
        self._begun = self._announced = time.monotonic()
        self._task = bar.add_task("transcribing", total=self._total)

    def on_audio(self, seconds: float) -> None:
        """Move the bar."""
        self._bar.advance(self._task, seconds)

    def on_part(self, record: Mapping[str, Any]) -> None:
        """Count a part."""
        self._left -= 1
        self._done += float(self._job.seconds[record["part"]])
        self._failures += len(record["failures"])
        now = time.monotonic()
        rate = self._done / (now - self._begun)
        left = duration((self._total - self._done) / rate) if rate else "unknown"
        hours = f"{self._done / 3600:.2f} of {self._total / 3600:.2f} h"
        text = f"{hours}, {rate:.1f} times real time, {counted(self._failures, 'failure')}"
        self._bar.update(self._task, description=text, completed=self._done)
        if self._bar.disable and (now - self._announced > LINE_SECONDS or not self._left):
            self._announced = now
            _say(f"{text}, {left} left" if self._left else text)
