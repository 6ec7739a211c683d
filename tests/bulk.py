"""Common parts of the tests of bulk jobs: an input with good and bad files, real jobs, and their output."""

import json
import os
import resource
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests import forked
from tests.conftest import ROOT
from tests.forked import write_output_to
from tests.tones import SAMPLE_RATE, sentences, speak

BUNDLE = ROOT / "tests" / "bundles" / "format-11"
PART_HOURS = 6 / 3600  # hours of audio per part, so short that a part has only a few utterances
BAD = ("missing", "empty", "text", "nan", "half")


def write_input(folder: Path, count: int = 24) -> Path:
    """Write a manifest without texts: `count` good recordings, mixed with one bad recording of each kind."""
    (folder / "audio").mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for number, text in enumerate(sentences(count, seed=3, words=(2, 5))):
        path = folder / "audio" / f"{number:03d}.flac"
        soundfile.write(path, speak(text), SAMPLE_RATE)
        entries.append({"id": f"good {number}", "audio_filepath": f"audio/{path.name}", "duration": seconds(path)})
    for place, kind in enumerate(BAD):
        bad = folder / "audio" / f"{kind}.flac"
        _write_bad(bad, kind)
        entry = {"id": f"bad {kind}", "audio_filepath": f"audio/{bad.name}", "duration": 1.5}
        entries.insert((5 * place) % len(entries), entry)
    manifest = folder / "input.jsonl"
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return manifest


def seconds(path: Path) -> float:
    return float(soundfile.info(path).duration)


def _write_bad(path: Path, kind: str) -> None:
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("this is not audio at all")
    elif kind == "nan":
        soundfile.write(path, np.full(24_000, np.nan, np.float32), SAMPLE_RATE, format="WAV", subtype="FLOAT")
    elif kind == "half":
        soundfile.write(path, np.tile(speak("abcdef"), 2), SAMPLE_RATE)
        os.truncate(path, path.stat().st_size // 2)


def job_options(source: str | Path, output: str | Path, *more: str, model: str | Path = BUNDLE) -> list[str]:
    """Return arguments of asr.transcribe for a bulk job with small parts."""
    options = ["--parts", "--part-hours", str(PART_HOURS), "--output-dir", str(output), "--device", "cpu"]
    return [str(model), str(source), *options, *more]


def finished_job(source: Path, folder: Path, *more: str) -> Path:
    """Run a job without interruption; return its output folder."""
    from asr.transcribe import main

    output = folder / "out"
    assert main(job_options(source, output, *more)) == 0, "bad recordings must not fail the job"
    return output


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts_of(output: Path) -> dict[str, dict[str, Any]]:
    """Map utterance ids to the lines of all parts; fail if an id occurs twice."""
    entries = [entry for part in sorted(output.glob("part-*.jsonl")) for entry in lines(part)]
    by_id = {entry["id"]: entry for entry in entries}
    assert len(by_id) == len(entries)
    return by_id


def failures_of(output: Path) -> dict[str, str]:
    entries = lines(output / "failures.jsonl")
    by_id = {entry["id"]: entry["reason"] for entry in entries}
    assert len(by_id) == len(entries)
    return by_id


def files_of(output: Path) -> dict[str, bytes]:
    """Return the contents of all output files except the records and the report, which contain times."""
    return {path.name: path.read_bytes() for path in sorted([*output.glob("*.jsonl"), output / "job.json"])}


def _run(arguments: list[str], output: Path, max_bytes: int | None, before: Callable[[], object] | None) -> None:
    write_output_to(output)
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    if before is not None:
        before()
    from asr.core.cli.command import run_command
    from asr.transcribe import main

    run_command(lambda _: main(arguments))


def start(
    arguments: list[str], output: Path, max_bytes: int | None = None, before: Callable[[], object] | None = None
) -> BaseProcess:
    """Start asr.transcribe in a separate process.

    Args:
        arguments: arguments of the command.
        output: file for the output of the command.
        max_bytes: maximum size of a file, which simulates a full disk.
        before: called before the command, to inject a fault.
    """
    process = forked.process(_run, arguments, output, max_bytes, before)
    process.start()
    return process
