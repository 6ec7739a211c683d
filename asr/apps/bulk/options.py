"""Bulk jobs of asr.transcribe: options, dry run, progress."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asr.base.settings.plugins import use
from asr.base.text.numbers import counted, duration, finite
from asr.core.cli.command import LINE_SECONDS, characters, load_model, progress_bar
from asr.core.decoder_choice import of_options
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.bulk.job import BulkJob, Engine
    from asr.core.data.manifest import Utterance
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

# limits of the sample that a dry run measures: seconds of audio, and number of utterances
SAMPLE_SECONDS, MAX_SAMPLED = 60.0, 20
NEEDS_PARTS = (
    "part",
    "segments",
    "dry_run",
    "accept_failures",
    "redo_failures",
    "engine",
    "address",
)  # options that need --parts


def add_bulk(parser: argparse.ArgumentParser) -> None:
    """Add the options of bulk jobs."""
    bulk = parser.add_argument_group(
        "bulk jobs (one PATH; --output-dir may be a URL; the same command resumes a job)",
    )
    bulk.add_argument("--parts", action="store_true", help="write one file for each part of the input, atomically")
    bulk.add_argument("--part-hours", type=finite, default=1.0, metavar="H", help="hours of audio per part (default 1)")
    bulk.add_argument(
        "--part", metavar="K/N", help="transcribe only the K-th of N shares of the parts, for SLURM arrays"
    )
    bulk.add_argument("--segments", action="store_true", help="also write training segments, cut at silences")
    bulk.add_argument("--dry-run", action="store_true", help="print parts, hours, expected time and requests, and exit")
    bulk.add_argument(
        "--accept-failures", action="store_true", help="continue after a part in which every utterance failed"
    )
    bulk.add_argument("--redo-failures", action="store_true", help="also transcribe again the parts that have failures")
    bulk.add_argument("--engine", choices=("local", "ray"), help="this process (default) or a Ray cluster")
    bulk.add_argument(
        "--address", metavar="HOST:PORT", help="address of the Ray cluster, or auto (default: start one here)"
    )


def check_bulk(options: argparse.Namespace) -> None:
    """Check the combination of a bulk job's options."""
    if not options.parts:
        for key in NEEDS_PARTS:
            if getattr(options, key):
                raise InputError(f"--{key.replace('_', '-')} needs --parts; got none.")
        return
    if len(options.paths) != 1:
        raise InputError(f"--parts needs exactly one PATH; got {len(options.paths)}. Join them in one manifest.")
    if options.output_dir is None:
        raise InputError("--parts needs --output-dir, a folder or a URL; got none.")
    if options.format not in (["txt"], ["jsonl"]):  # txt is the default
        raise InputError(f"--format must be jsonl with --parts; got {', '.join(options.format)}.")
    if options.stream:
        raise InputError("--stream must not be given with --parts. Leave one of them out.")
    if not options.part_hours > 0:
        raise InputError(f"--part-hours must be positive; got {options.part_hours:g}.")
    if options.address and options.engine != "ray":
        raise InputError("--address needs --engine ray; got another engine.")


def run_bulk(
    options: argparse.Namespace, inference: "Inference", check: "Callable[[Recognizer], None]"
) -> "BulkJob | None":
    """Run a bulk job, or print the results of a dry run; return the job if all of its parts are done.

    Args:
        options: options of the command.
        inference: options of inference.
        check: raises InputError if the recogniser does not suit the options.
    """
    from asr.apps.bulk.job import JobSettings, open_job
    from asr.apps.bulk.parts import share_of

    cut = options.part_hours, options.segments, inference, options.precision, options.segment
    settings = JobSettings(*cut, options.latency, characters(options))
    model = options.model, options.base, of_options(options)
    job = open_job(options.paths[0], str(options.output_dir), *model, settings)
    share = share_of(options.part, job.plan.num_parts)
    missing = job.missing(share)
    if options.redo_failures:
        missing = sorted([*missing, *job.with_failures(share)])
    if options.dry_run:
        job.folder.check(job.identity)
        _show(job, missing, len(share), load_model(options, options.language), inference)
        return None
    job.folder.claim(job.identity)
    _say(_summary(job, missing, len(share)))
    if missing:
        with _progress(job, missing) as progress:
            engine = _engine(options, inference, check, progress, job.identity["fingerprints"]["model"])
            job.run(missing, engine, options.accept_failures, progress.on_part)
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
    """Return the engine that the options choose; `model` is the fingerprint of the model."""
    if options.engine == "ray":
        from asr.apps.bulk.ray_engine import Worker, transcribe_on_ray

        load = partial(_load_same, options, check, model)
        key = f"{model} {options.device} {options.precision} {options.latency} {options.characters}"
        worker = Worker(key, load, inference, options.segments)
        return partial(transcribe_on_ray, worker=worker, address=options.address, device=options.device)
    from asr.apps.bulk.transcription import transcribe_part

    recognizer = load_model(options, options.language)
    check(recognizer)
    transcribe = partial(
        transcribe_part,
        recognizer,
        inference=inference,
        with_segments=options.segments,
        on_progress=progress.on_audio,
    )
    return partial(map, transcribe)


def _load_same(options: argparse.Namespace, check: "Callable[[Recognizer], None]", expected: str) -> "Recognizer":
    """Load the model in a worker process, which may be on another machine."""
    from asr.apps.bulk.fingerprints import model_fingerprint

    use(options.plugin, "--plugin")  # the driver has parsed the options, not this process
    if model_fingerprint(options.model, options.base, of_options(options)) != expected:
        raise InputError(f"MODEL must be identical on all machines of the cluster; {options.model} differs here.")
    recognizer = load_model(options, options.language)
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
    """Print the results of a dry run: the job, its expected time, and its number of requests."""
    seconds = float(job.seconds[list(missing)].sum()) if missing else 0.0
    print(_summary(job, missing, num_share))
    for name in ("input", "model"):
        print(f"{name}: {job.identity[name]}")
    sampled, rate = _measured_rate(job, recognizer, inference)
    if rate is None:
        print(f"expected time: unknown, none of {counted(sampled, 'utterance')} could be recognised")
    else:
        measured = f"{rate:.1f} times real time on {counted(sampled, 'utterance')}"
        print(f"expected time: {duration(seconds / rate)} for one worker such as this one ({measured}), plus start-up")
    reads = sum(job.plan.rows(number).stop - job.plan.rows(number).start for number in missing)
    files = 3 if job.identity["settings"]["segments"] else 2
    print(
        f"requests: {reads:,} reads of audio at most, {files * len(missing):,} writes, 2 to start, "
        f"{job.plan.num_parts + 4:,} for the report"
    )


def _measured_rate(job: "BulkJob", recognizer: "Recognizer", inference: "Inference") -> tuple[int, float | None]:
    """Recognise a few evenly spaced utterances; return their number, and the seconds of audio recognised per second.

    The rate is None if none of these utterances could be recognised.
    """
    import numpy as np

    from asr.apps.bulk.parts import PartTask
    from asr.apps.bulk.transcription import transcribe_part

    number = len(job.source.utterances)
    rows = np.unique(np.linspace(0, number - 1, MAX_SAMPLED).round().astype(int))
    sample: list[Utterance] = []
    total = 0.0
    for row in rows.tolist():
        utterance = job.source.utterances[row]
        if sample and total + utterance.duration > SAMPLE_SECONDS:
            continue
        sample.append(utterance)
        total += utterance.duration
    task = PartTask(0, sample, job.source.is_measured, {})
    transcribe_part(recognizer, PartTask(0, sample[:1], job.source.is_measured, {}), inference, False)  # warm-up
    record = transcribe_part(recognizer, task, inference, False).record
    return len(sample), record["audio_seconds"] / record["seconds"] if record["audio_seconds"] else None


@contextmanager
def _progress(job: "BulkJob", missing: Sequence[int]) -> "Iterator[_Progress]":
    with progress_bar() as bar:
        yield _Progress(job, missing, bar)


class _Progress:
    """Progress of a job (hours, rate, failures, time left): a bar on a terminal, otherwise lines."""

    def __init__(self, job: "BulkJob", missing: Sequence[int], bar: Any) -> None:
        self._job, self._bar = job, bar
        self._total = float(job.seconds[list(missing)].sum())
        self._left, self._done = len(missing), 0.0
        self._failures = 0
        self._begun = self._announced = time.monotonic()
        self._task = bar.add_task("transcribing", total=self._total)

    def on_audio(self, seconds: float) -> None:
        """Advance the bar by this number of seconds of audio."""
        self._bar.advance(self._task, seconds)

    def on_part(self, record: Mapping[str, Any]) -> None:
        """Count a finished part."""
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
