"""Transcription of a part's utterances as in `asr.transcribe`; output lines also have the keys of a manifest line."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from asr.apps.bulk.parts import PartTask
from asr.apps.bulk.statistics import CONFIDENCE_BINS, LISTS, part_statistics
from asr.base.audio.load import audio_info
from asr.base.storage.location import absolute
from asr.core.data.batch import Rejected
from asr.core.data.dataset import fetch
from asr.core.data.manifest import Utterance
from asr.core.recognition.aligned_segments import word_segments
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.transcript import Transcript
from asr.errors import AudioError, StoreError, is_out_of_memory, one_line

MAX_SEGMENT_SECONDS = 20.0  # most models are trained on utterances up to this length
MAX_NUMBER = 1e15  # in a record: larger ones are damage
Entry = dict[str, Any]  # a line of a JSONL file


class PartResult(NamedTuple):
    """Result of a transcribed part.

    Args:
        number: number of the part.
        texts: output lines of the utterances with a transcript, in the order of the input.
        segments: lines of a training manifest; None: not requested.
        record: counts, times and failures of the part.
    """

    number: int
    texts: list[Entry]
    segments: list[Entry] | None
    record: Entry


def is_record(entry: object) -> bool:
    """Return whether an entry that was read from a file has the keys and types of a part's record."""
    sample: Entry = {"part": 0, "worker": "", "begun": 0.0, "seconds": 0.0, "waiting_seconds": 0.0}
    sample |= {"audio_seconds": 0.0}
    sample |= {"failures": [{"id": "", "reason": ""}], "num_segments": 0, "num_torn": 0, **part_statistics([])}
    sample |= {key: [{"id": "", "value": 0.0, "seconds": 0.0, "text": ""}] for key in LISTS}
    if not isinstance(entry, dict) or not _is_like(entry, sample) or len(entry["confidence"]) != CONFIDENCE_BINS:
        return False
    sizes = entry.get("num_bytes", {})  # records of earlier versions have none
    if not isinstance(sizes, dict):
        return False
    amounts = [*(entry[key] for key, value in sample.items() if value == 0), *entry["confidence"], *sizes.values()]
    return all(_is_like(amount, 0.0) and amount >= 0 for amount in amounts)


def _is_like(value: object, sample: object) -> bool:
    """Return whether a value has the type of a sample; all items of a list have the type of the sample's first item.

    Numbers must be finite, and not too large for sums of them.
    """
    if isinstance(sample, dict):
        return isinstance(value, dict) and all(key in value and _is_like(value[key], sample[key]) for key in sample)
    if isinstance(sample, list):
        return isinstance(value, list) and all(_is_like(item, sample[0]) for item in value)
    if isinstance(sample, str):
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return (isinstance(sample, float) or isinstance(value, int)) and abs(value) < MAX_NUMBER


class Outcomes(NamedTuple):
    """Transcripts and failures of a part's utterances, by id; each utterance has either a transcript or a failure."""

    utterances: dict[str, Utterance]
    transcripts: dict[str, Transcript]
    failures: dict[str, str]


def transcribe_part(
    recognizer: Recognizer,
    task: PartTask,
    inference: Inference,
    with_segments: bool,
    on_progress: Callable[[float], None] = lambda seconds: None,
) -> PartResult:
    """Transcribe a part.

    If recognition raises an error that is not an AudioError, bisection finds the utterances that cause it. These
    utterances become failures, and the other utterances are recognised again.

    Args:
        recognizer: the model.
        task: the part.
        inference: as for `Recognizer.recognize`.
        with_segments: whether to cut utterances into segments to train on.
        on_progress: called with the seconds of audio recognised since the last call.

    Raises:
        StoreError: a store failed.
        MemoryError, RuntimeError: memory does not suffice for a batch.
        Exception: an error of a batch that no single utterance raises.
    """
    begun, begun_at = time.monotonic(), time.time()
    waited_before = recognizer.recording_encoder.waiting_seconds
    outcomes = _opened(task)
    opening_seconds = time.monotonic() - begun
    try:
        _recognise(recognizer, outcomes, inference, on_progress)
    except Exception as error:
        if isinstance(error, StoreError) or is_out_of_memory(error):
            raise
        remaining = [utterance for name, utterance in outcomes.utterances.items() if name not in outcomes.failures]
        failures = isolated_failures(lambda suspects: list(recognizer.recognize(suspects, inference)), remaining)
        if not failures:  # no single utterance raises the error
            raise
        outcomes.failures.update(failures)
        outcomes.transcripts.clear()
        _recognise(recognizer, outcomes, inference, on_progress)
    waiting_seconds = opening_seconds + recognizer.recording_encoder.waiting_seconds - waited_before
    sample_rate = recognizer.model.features.sample_rate
    segments, num_torn = _segments(outcomes, sample_rate) if with_segments else (None, 0)
    names = [utterance.id for utterance in task.utterances]
    done = [outcomes.utterances[name] for name in names if name in outcomes.transcripts]
    record = {
        "part": task.number,
        "worker": f"{socket.gethostname()}-{os.getpid()}",
        "begun": round(begun_at, 3),
        "seconds": round(time.monotonic() - begun, 3),
        "waiting_seconds": round(waiting_seconds, 3),
        "audio_seconds": round(sum(utterance.duration for utterance in done), 3),
        "failures": [{"id": name, "reason": outcomes.failures[name]} for name in names if name in outcomes.failures],
        "num_segments": len(segments or ()),
        "num_torn": num_torn,
        **part_statistics([(utterance.id, outcomes.transcripts[utterance.id]) for utterance in done]),
    }
    texts = [_entry(utterance) | outcomes.transcripts[utterance.id].as_dict() for utterance in done]
    return PartResult(task.number, texts, segments, record)


def _opened(task: PartTask) -> Outcomes:
    """Return the utterances of a part; if durations are estimates, read the audio files and measure them."""
    outcomes = Outcomes({utterance.id: utterance for utterance in task.utterances}, {}, dict(task.excluded))
    if task.is_measured:
        return outcomes
    included = [utterance for utterance in task.utterances if utterance.id not in task.excluded]
    for utterance in fetch(included):
        try:
            info = audio_info(utterance.audio_filepath, utterance.content)
        except AudioError as error:
            outcomes.failures[utterance.id] = one_line(error)
            continue
        outcomes.utterances[utterance.id] = replace(utterance, duration=info.num_samples / info.sample_rate)
    return outcomes


def _recognise(
    recognizer: Recognizer, outcomes: Outcomes, inference: Inference, on_progress: Callable[[float], None]
) -> None:
    """Recognise the utterances that have no failure yet."""
    utterances = [utterance for name, utterance in outcomes.utterances.items() if name not in outcomes.failures]
    for result in recognizer.recognize(utterances, inference, on_progress):
        if isinstance(result, Rejected):
            outcomes.failures[result.utterance.id] = one_line(result.reason)
        else:
            outcomes.transcripts[result[0].id] = result[1]


def _entry(utterance: Utterance) -> Entry:
    """Return the first keys of an utterance's output line: id, audio file, position in the file, speaker."""
    entry: Entry = {"id": utterance.id, "audio_filepath": absolute(utterance.audio_filepath)}
    if utterance.extent is not None:  # the audio is in a shard
        entry |= {"start": utterance.extent.start, "num_bytes": utterance.extent.num_bytes}
    if utterance.offset is not None:
        entry["offset"] = utterance.offset
    if utterance.speaker is not None:
        entry["speaker"] = utterance.speaker
    return entry


def _segments(outcomes: Outcomes, sample_rate: int) -> tuple[list[Entry], int]:
    """Cut utterances at silences.

    Returns:
        The segments' manifest lines, and the number of segments left out because a cut goes through a word.
    """
    segments: list[Entry] = []
    num_torn = 0
    for name, utterance in outcomes.utterances.items():
        if name not in outcomes.transcripts:
            continue
        words = outcomes.transcripts[name].words
        for segment in word_segments(utterance, words, MAX_SEGMENT_SECONDS, sample_rate):
            if segment.is_torn:
                num_torn += 1
                continue
            inside = words[segment.first : segment.last]
            segments.append(
                _entry(utterance)
                | {
                    "id": f"{name}-{segment.number:05d}",
                    "offset": round((utterance.offset or 0.0) + segment.begin, 3),
                    "duration": round(segment.end - segment.begin, 3),
                    "text": " ".join(word.text for word in inside),
                    "confidence": round(sum(word.confidence for word in inside) / len(inside), 4),
                }
            )
    return segments, num_torn


def isolated_failures(
    recognise: Callable[[Sequence[Utterance]], object], utterances: Sequence[Utterance]
) -> dict[str, str]:
    """Find the utterances that cannot be recognised even alone; map the id of each to the reason.

    The results of `recognise` are not used, so the texts of a part do not depend on how failures were found. An error
    of a store or a lack of memory is raised, because no single utterance causes it.
    """
    failures: dict[str, str] = {}
    stack = [list(utterances)]
    while stack:
        suspects = stack.pop()
        try:
            if suspects:
                recognise(suspects)
        except Exception as error:
            if isinstance(error, StoreError) or is_out_of_memory(error):
                raise
            if len(suspects) == 1:
                failures[suspects[0].id] = one_line(f"{type(error).__name__}: {error}")
                continue
            half = len(suspects) // 2
            stack += [suspects[half:], suspects[:half]]
    return failures
