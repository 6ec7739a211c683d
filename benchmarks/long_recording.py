"""python -m benchmarks.long_recording MODEL AUDIO...: time, memory and errors of long recordings.

Memory is bounded by --batch-seconds, which is what is in the net at once, and by --chunk, whose square attention
takes and of which two are decoded at once; it does not grow with the recording.
"""

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jiwer
import soundfile
import torch

from asr.audio.load import load_waveform
from asr.checkpoint.load import load_recognizer
from asr.cli.command import inference, run_command
from asr.data.batch_plan import BatchBounds
from asr.data.manifest import Utterance
from asr.evaluation.word_errors import ErrorCounts, count_errors, total
from asr.recognition.chunks import ChunkBounds, cut_chunks
from asr.recognition.inference import Inference
from asr.recognition.long_form import at_silences
from asr.recognition.recognizer import Recognizer
from asr.recognition.recordings import whole_file
from asr.recognition.transcript import Transcript, Word
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.model import add_model, read_utterances
from benchmarks.race import cpu_seconds
from benchmarks.results import Results, fixed, share

WAYS = {"chunks": None, "silence": at_silences}  # to cut
SAMPLE_RATE = 16000  # of the recordings that are made
NOISE = 3e-4  # standard deviation, of the pauses
NEAR_SECONDS = 1.0  # of a seam
COMPARED_SECONDS = (60, 120)  # length of recordings that are compared with one pass
LENGTHS = {
    "minutes": str,
    "segment": str,
    "seconds": fixed(1),
    "CPU seconds": fixed(1),
    "real time x": fixed(4),
    "peak MB": fixed(0),
    "more MB": fixed(0),
    "words": fixed(0),
    "WER": share,
}
COMPARISON = {
    "segment": str,
    "words": fixed(0),
    "words that differ": share,
    "of these near a seam": share,
    "of all words there": share,
    "WER": share,
    "WER of one pass": share,
}


@dataclass(frozen=True)
class Recording:
    """A WAV file made of utterances, and what is said in it; empty where that is not known."""

    path: Path
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each length and way to cut; with --compare, a row for each way to cut."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_recording", description=__doc__)
    add_model(parser)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 10, 60], help="of the recordings (1 10 60)")
    parser.add_argument("--segment", nargs="+", choices=sorted(WAYS), default=["chunks", "silence"], dest="ways")
    parser.add_argument("--pause", type=float, default=0.4, metavar="S", help="faint noise between utterances (0.4)")
    parser.add_argument("--compare", action="store_true", help="with one pass over recordings of 1 to 2 minutes")
    parser.add_argument("--recordings", type=int, default=10, metavar="N", help="that are compared (10)")
    for name in ("--batch-seconds", "--chunk", "--context"):
        parser.add_argument(name, type=float, metavar="S", help="as of asr.transcribe")
    results.add_options(parser)
    parser.set_defaults(segment="chunks", num_workers=0, turns=1)
    given = parser.parse_args(arguments)
    how = inference(given)
    utterances = list(read_utterances(given.audio))
    facts = about(given)
    bounds = f"chunks of {how.chunks.chunk_seconds:g} s, {how.chunks.context_seconds:g} s of them context"
    print(f"batch_seconds={how.batches.batch_seconds:g}, {bounds} at each end; pauses of {given.pause:g} s\n")
    with tempfile.TemporaryDirectory() as folder:
        measured = _comparison if given.compare else _lengths
        measured(given, utterances, how, Path(folder)).keep(given.output_dir, facts)
    return 0


def concatenate(utterances: Iterable[Utterance], seconds: float, pause: float, path: Path) -> Recording:
    """Write utterances, a pause behind each, until there are so many seconds."""
    texts: list[str] = []
    noise = NOISE * torch.randn(round(pause * SAMPLE_RATE), generator=torch.Generator().manual_seed(0))
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, channels=1, subtype="PCM_16") as file:
        for one in utterances:
            if file.tell() >= seconds * SAMPLE_RATE:
                break
            duration = None if one.offset is None else one.duration
            file.write(load_waveform(one.audio_filepath, SAMPLE_RATE, offset=one.offset, duration=duration).numpy())
            file.write(noise.numpy())
            texts.append(one.text)
    return Recording(path, " ".join(texts) if all(texts) else "")


def _errors(recognizer: Recognizer, recording: Recording, transcript: Transcript) -> ErrorCounts:
    return count_errors(recognizer.model.normalize(recording.text), transcript.text)


def _of(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# ---- how time and memory go with the length


def _lengths(given: argparse.Namespace, utterances: list[Utterance], how: Inference, folder: Path) -> Results:
    table = Results("long_recording", LENGTHS, bars="seconds", within=("minutes",))
    for minutes in given.minutes:
        recording = concatenate(itertools.cycle(utterances), 60 * minutes, given.pause, folder / f"{minutes:g}.wav")
        hows = [replace(how, segmenter=WAYS[way]) for way in given.ways]
        turns = [
            [in_fresh_process(measure, given.model, recording, one) for one in hows]  # so that none finds freed memory
            for _ in range(given.turns)
        ]
        for way, taken in zip(given.ways, zip(*turns, strict=True), strict=True):
            took, cpu, peak, more = (statistics.median(one) for one in list(zip(*taken, strict=True))[:4])
            *_, words, wer = taken[0]  # the same in each turn
            table.row(f"{minutes:g}", way, took, cpu, took / (60 * minutes), peak, more, words, wer)
    return table


def measure(model: str, recording: Recording, how: Inference) -> tuple[float, float, float, float, int, float | None]:
    """Transcribe a recording; return seconds, CPU seconds, the peak of MB, the part that came with it, words, WER."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or torch.get_num_threads())
    recognizer = load_recognizer(model)
    once = min(whole_file(recording.path, "").duration, how.chunks.chunk_seconds)
    recognizer.transcribe(
        [load_waveform(recording.path, recognizer.model.features.sample_rate, duration=once)], how, sample_rate=16_000
    )
    warm = peak_memory()  # as of getrusage, but that counts what the parent had before the child began
    started, cpu_started = time.perf_counter(), cpu_seconds()
    [transcript] = recognizer.transcribe([recording.path], how)
    took, cpu = time.perf_counter() - started, cpu_seconds() - cpu_started
    peak = peak_memory()
    errors = _errors(recognizer, recording, transcript).errors if recording.text else 0
    wer = _of(errors, len(recognizer.model.normalize(recording.text).split()))
    return took, cpu, peak / 1e6, (peak - warm) / 1e6, len(transcript.words), wer


# ---- how what comes out in chunks differs from one pass


@dataclass
class Difference:
    """Words that one pass and another way to cut do not share, summed over recordings."""

    words: int = 0  # of one pass
    words_near: int = 0  # to a seam
    differing: int = 0
    differing_near: int = 0

    def count(self, whole: Sequence[Word], cut: Sequence[Word], seams: Sequence[float]) -> None:
        """Add a recording."""

        def near(word: Word) -> bool:
            return any(word.start - NEAR_SECONDS <= seam <= word.end + NEAR_SECONDS for seam in seams)

        self.words += len(whole)
        self.words_near += sum(map(near, whole))
        compared = jiwer.process_words(" ".join(one.text for one in whole), " ".join(one.text for one in cut))
        for chunk in compared.alignments[0]:
            if chunk.type != "equal":
                spans = (whole[chunk.ref_start_idx : chunk.ref_end_idx], cut[chunk.hyp_start_idx : chunk.hyp_end_idx])
                differing = max(spans, key=len)
                self.differing += len(differing)
                self.differing_near += sum(map(near, differing))


def _comparison(given: argparse.Namespace, utterances: list[Utterance], how: Inference, folder: Path) -> Results:
    recognizer = load_recognizer(given.model)
    draw = random.Random(0)
    recordings = [
        concatenate(
            draw.sample(utterances, len(utterances)),
            draw.uniform(*COMPARED_SECONDS),
            given.pause,
            folder / f"{number}.wav",
        )
        for number in range(given.recordings)
    ]
    longest = 2 * COMPARED_SECONDS[1]
    at_once = Inference(BatchBounds(batch_seconds=longest, max_utterances=1), ChunkBounds(longest, 0))
    wholes = [recognizer.transcribe([recording.path], at_once)[0] for recording in recordings]
    table = Results("long_recording_compared", COMPARISON, bars="words that differ")
    for way in given.ways:
        difference, cut_errors, whole_errors = Difference(), [], []
        for recording, whole in zip(recordings, wholes, strict=True):
            cut, seams = recognize_with_seams(recognizer, recording, replace(how, segmenter=WAYS[way]), way)
            difference.count(whole.words, cut.words, seams)
            cut_errors.append(_errors(recognizer, recording, cut))
            whole_errors.append(_errors(recognizer, recording, whole))
        known = all(recording.text for recording in recordings)
        wers = [total(errors).rate if known else None for errors in (cut_errors, whole_errors)]
        near = _of(difference.differing_near, difference.differing)
        there = _of(difference.words_near, difference.words)
        table.row(way, difference.words, _of(difference.differing, difference.words), near, there, *wers)
    return table


def recognize_with_seams(
    recognizer: Recognizer, recording: Recording, how: Inference, way: str
) -> tuple[Transcript, list[float]]:
    """Transcribe a recording; return the seconds, too, at which chunks, or segments, meet."""
    utterance = whole_file(recording.path, "0")
    [(_, segments)] = recognizer.segments([utterance], how)  # type: ignore[misc]
    held = list(segments)
    seams = [start for start, _ in held[1:]]
    if way == "chunks":
        sample_rate = recognizer.model.features.sample_rate
        samples = how.chunks.samples(sample_rate, recognizer.model.frame_samples)
        waveform = load_waveform(recording.path, sample_rate)
        seams += [chunk.keep / sample_rate for chunk in cut_chunks([waveform], *samples)][1:]
    return recognizer.transcript(utterance.duration, iter(held)), seams


if __name__ == "__main__":
    run_command(main)
