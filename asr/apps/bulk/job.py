"""A bulk job: parts of an input that any number of processes transcribe into one folder, in any order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asr.apps.bulk.fingerprints import input_fingerprint, model_fingerprint
from asr.apps.bulk.folder import JobFolder, job_fingerprints
from asr.apps.bulk.parts import PartPlan, PartTask, plan_parts
from asr.apps.bulk.source import Source, open_source
from asr.apps.bulk.transcription import PartResult
from asr.base.storage.location import absolute, printable_url
from asr.base.text.numbers import counted
from asr.core.build import build_labels
from asr.core.checkpoint.load import read_settings
from asr.core.data.manifest import HOTWORDS
from asr.core.hub.download import path_of
from asr.core.recognition.inference import Inference
from asr.errors import InputError, shown

NUM_SHOWN = 3  # maximum number of failures in an error message
Engine = Callable[[Iterable[PartTask]], Iterator[PartResult]]  # transcribes parts; results come in any order


@dataclass(frozen=True)
class JobSettings:
    """Settings of a job that change its files.

    Args:
        part_hours: hours of audio in a part.
        with_segments: whether to write segments for training.
        inference: inference options; the number of workers has no effect on the files.
        precision: value of --precision.
        segment: value of --segment, the method of cutting long recordings.
        latency: value of --latency, in seconds; None: the model's own.
        characters: value of --characters; None: all letters.
    """

    part_hours: float
    with_segments: bool
    inference: Inference
    precision: str
    segment: str
    latency: float | None = None
    characters: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, from which the job's fingerprint is computed."""
        batches, chunks = self.inference.batches, self.inference.chunks
        return {
            "part_hours": self.part_hours,
            "segments": self.with_segments,
            "precision": self.precision,
            "segment": self.segment,
            "batch_seconds": _plain(batches.seconds),
            "max_utterances": batches.max_utterances,
            "chunk_seconds": _plain(chunks.chunk_seconds),
            "context_seconds": _plain(chunks.context_seconds),
            "nbest": self.inference.nbest,
            **({"language": self.inference.language} if self.inference.language else {}),
            **({} if self.latency is None else {"latency": self.latency}),
            **({} if self.characters is None else {"characters": self.characters}),
        }


def _plain(seconds: float | None) -> float | None:
    """Return whole numbers as int, so that a default equals the same number given on the command line."""
    return int(seconds) if seconds is not None and float(seconds).is_integer() else seconds


@dataclass(frozen=True)
class BulkJob:
    """A job and its folder.

    Args:
        source: the input.
        plan: boundaries of the parts.
        seconds: seconds of audio in each part, (number of parts,); estimates if the source's durations are estimates.
        folder: output folder.
        identity: content of job.json.
    """

    source: Source
    plan: PartPlan
    seconds: np.ndarray
    folder: JobFolder
    identity: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Names of all parts."""
        return [self.plan.name(number) for number in range(self.plan.num_parts)]

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the parts that are not done."""
        return [number for number in numbers if not self.folder.is_done(self.plan.name(number))]

    def with_failures(self, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the parts that are done and have failures."""
        done = [number for number in numbers if self.folder.is_done(self.plan.name(number))]
        records = self.folder.records([self.plan.name(number) for number in done])
        return [number for number, record in zip(done, records, strict=True) if record["failures"]]

    def tasks(self, numbers: Sequence[int]) -> Iterator[PartTask]:
        """Yield parts to transcribe; the utterances of a part are created only when it is requested."""
        for number in numbers:
            rows = self.plan.rows(number)
            utterances = [self.source.utterances[row] for row in range(rows.start, rows.stop)]
            yield PartTask(number, utterances, self.source.is_measured, {})

    def run(
        self,
        numbers: Sequence[int],
        engine: Engine,
        accept_failures: bool,
        on_part: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Transcribe parts and write each as soon as it is done.

        Args:
            numbers: numbers of the parts.
            engine: transcribes the parts.
            accept_failures: whether to write a part in which every utterance has failed. The cause is probably the
                model, or a folder that is not mounted.
            on_part: called with the record of each written part.

        Raises:
            InputError: every utterance of a part has failed, and `accept_failures` is false.
            StoreError: a store failed; the same command resumes the job.
        """
        for result in engine(self.tasks(numbers)):
            if not result.texts and not accept_failures:
                raise _without_texts(self.plan.name(result.number), result.record["failures"])
            self.folder.write_part(self.plan.name(result.number), result)
            on_part(result.record)


def _without_texts(part: str, failures: Sequence[Mapping[str, str]]) -> InputError:
    must = f"{part}: at least one utterance must have a text; got {counted(len(failures), 'failure')}"
    reasons = "; ".join(f"{shown(failure['id'])}: {failure['reason'].rstrip('.')}" for failure in failures[:NUM_SHOWN])
    cure = "Mend the cause and start the same command again, or accept such parts with --accept-failures."
    return InputError(f"{must}: {reasons}{'; ...' if len(failures) > NUM_SHOWN else ''}. {cure}")


def open_job(
    path: str, output: str, model: str, base: str | None, decode: Mapping[str, Any], settings: JobSettings
) -> BulkJob:
    """Open a job without writing: read its input, plan its parts, list its folder.

    Args:
        path: path or URL of the input.
        output: folder or URL.
        model: as for `load_recognizer`.
        base: base of the model if it is an adapter.
        decode: settings of the decoder that replace the model's own.
        settings: settings of the job.

    Raises:
        InputError: input, output or model cannot be used.
        StoreError: a store cannot be read.
    """
    folder = JobFolder(output)
    before = folder.job()
    labels = build_labels(read_settings(Path(path_of(model)))).names
    source = open_source(path, before.get("bytes_per_second") or None if before else None, [*labels, HOTWORDS])
    if any(source.utterances.label(HOTWORDS)):  # else the fingerprint is that of a job without hotwords
        labels = [*labels, HOTWORDS]
    durations = source.utterances.durations
    plan = plan_parts(durations, settings.part_hours * 3600)
    identity = {
        "fingerprints": job_fingerprints(
            input_fingerprint(source, labels), model_fingerprint(model, base, decode), settings.as_dict()
        ),
        "input": absolute(source.path),
        "model": printable_url(model) if "://" in model else str(Path(model).resolve()),
        "settings": settings.as_dict(),
        "bytes_per_second": dict(source.bytes_per_second),
        "num_utterances": len(source.utterances),
        "num_parts": plan.num_parts,
        "hours": round(source.utterances.hours, 4),
    }
    return BulkJob(source, plan, plan.seconds(durations), folder, identity)
