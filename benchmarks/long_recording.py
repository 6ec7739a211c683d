"""python -m benchmarks.long_recording MODEL AUDIO...: time, memory and errors of long recordings.

Memory does not grow with the length of the recording. It is bounded by --batch-seconds, the audio in one batch of the
network, and by --chunk: attention takes memory quadratic in a chunk's length, and two chunks are decoded at a time.
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

from asr.base.audio.load import load_waveform
from asr.base.text.word_errors import ErrorCounts, count_errors, total
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import inference, run_command
from asr.core.data.batch import Rejected
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.chunks import ChunkBounds, cut_chunks
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import at_silences
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.recordings import whole_file
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.model import add_model, read_utterances
from benchmarks.race import cpu_seconds
from benchmarks.results import Columns, Results, fixed, share

SEGMENTERS = {"chunks": None, "silence": at_silences}  # methods of cutting a recording
SAMPLE_RATE = 16000  # sample rate of the generated recordings
NOISE = 3e-4  # standard deviation of the noise in pauses
NEAR_SECONDS = 1.0  # maximum distance from a seam at which a word counts as near it
COMPARED_SECONDS = (60, 120)  # shortest and longest recording of --compare
LENGTHS: Columns = {
    "minutes": str,
    "segment": str,
    "seconds": fixed(1),
    "CPU seconds": fixed(1),
    "real-time factor": fixed(4),
    "peak MB": fixed(0),
    "MB above the model": fixed(0),
    "words": fixed(0),
    "WER": share,
}
COMPARISON: Columns = {
    "segment": str,
    "words": fixed(0),
    "words that differ": share,
    "of these near a seam": share,
    "of all words near a seam": share,
    "WER": share,
    "WER of one pass": share,
}


@dataclass(frozen=True)
class Recording:
    """A WAV file of concatenated utterances, and its text, which is empty if an utterance has no known text."""

    path: Path
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per recording length and method of cutting; with --compare, one row per method."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_recording", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--minutes", type=float, nargs="+", default=[1, 10, 60], help="lengths of the recordings (default: 1 10 60)"
    )
    parser.add_argument(
        "--segment", nargs="+", choices=sorted(SEGMENTERS), default=["chunks", "silence"], dest="methods"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.4,
        metavar="S",
        help="duration of the faint noise between utterances (default: 0.4)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare recognition in parts with one pass, on recordings of 1 to 2 minutes",
    )
    parser.add_argument(
        "--recordings", type=int, default=10, metavar="N", help="number of recordings of --compare (default: 10)"
    )
    for name in ("--batch-seconds", "--chunk", "--context"):
        parser.add_argument(name, type=float, metavar="S", help="as in asr.transcribe")
    results.add_options(parser)
    parser.set_defaults(segment="chunks", num_workers=0, turns=1)
    options = parser.parse_args(arguments)
    settings = inference(options)
    utterances = list(read_utterances(options.audio))
    facts = about(options)
    bounds = (
        f"chunks of {settings.chunks.chunk_seconds:g} s, including {settings.chunks.context_seconds:g} s of context"
    )
    print(f"batch_seconds={settings.batches.batch_seconds:g}, {bounds} at each end; pauses of {options.pause:g} s\n")
    with tempfile.TemporaryDirectory() as folder:
        run = _comparison if options.compare else _lengths
        run(options, utterances, settings, Path(folder)).save(options.output_dir, facts)
    return 0


def concatenate(utterances: Iterable[Utterance], seconds: float, pause: float, path: Path) -> Recording:
    """Write utterances to a WAV file, each followed by a pause, until the file is at least `seconds` long."""
    texts: list[str] = []
    noise = NOISE * torch.randn(round(pause * SAMPLE_RATE), generator=torch.Generator().manual_seed(0))
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, channels=1, subtype="PCM_16") as file:
        for utterance in utterances:
            if file.tell() >= seconds * SAMPLE_RATE:
                break
            offset, duration = utterance.offset, None if utterance.offset is None else utterance.duration
            waveform = load_waveform(utterance.audio_filepath, SAMPLE_RATE, offset=offset, duration=duration)
            file.write(waveform.numpy())
            file.write(noise.numpy())
            texts.append(utterance.text)
    return Recording(path, " ".join(texts) if all(texts) else "")


def _errors(recognizer: Recognizer, recording: Recording, transcript: Transcript) -> ErrorCounts:
    return count_errors(recognizer.model.normalize(recording.text), transcript.text)


def _fraction(part: float, total: float) -> float | None:
    return part / total if total else None


# ---- time and memory by length of the recording


def _lengths(options: argparse.Namespace, utterances: list[Utterance], settings: Inference, folder: Path) -> Results:
    table = Results("long_recording", LENGTHS, bars="seconds", group_by=("minutes",))
    for minutes in options.minutes:
        recording = concatenate(itertools.cycle(utterances), 60 * minutes, options.pause, folder / f"{minutes:g}.wav")
        method_settings = [replace(settings, segmenter=SEGMENTERS[method]) for method in options.methods]
        turns = [
            # new processes, so that none of them reuses freed memory
            [in_fresh_process(measure, options.model, recording, method_setting) for method_setting in method_settings]
            for _ in range(options.turns)
        ]
        for method, figures in zip(options.methods, zip(*turns, strict=True), strict=True):
            seconds, cpu, peak, above = (statistics.median(column) for column in list(zip(*figures, strict=True))[:4])
            *_, words, wer = figures[0]  # all turns give equal words
            table.row(f"{minutes:g}", method, seconds, cpu, seconds / (60 * minutes), peak, above, words, wer)
    return table


def measure(
    model: str, recording: Recording, settings: Inference
) -> tuple[float, float, float, float, int, float | None]:
    """Transcribe a recording.

    Returns:
        Seconds, CPU seconds, peak memory in MB, increase of the peak since the first chunk in MB, words, WER.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or torch.get_num_threads())
    recognizer = load_recognizer(model)
    first_chunk = min(whole_file(recording.path, "").duration, settings.chunks.chunk_seconds)
    waveform = load_waveform(recording.path, recognizer.model.features.sample_rate, duration=first_chunk)
    recognizer.transcribe([waveform], settings, sample_rate=16_000)
    initial_peak = peak_memory()  # getrusage would include the parent's memory at the fork
    start, cpu_start = time.perf_counter(), cpu_seconds()
    [transcript] = recognizer.transcribe([recording.path], settings)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu_start
    peak = peak_memory()
    errors = _errors(recognizer, recording, transcript).errors if recording.text else 0
    wer = _fraction(errors, len(recognizer.model.normalize(recording.text).split()))
    return seconds, cpu, peak / 1e6, (peak - initial_peak) / 1e6, len(transcript.words), wer


# ---- differences between recognition in chunks and in one pass


@dataclass
class Difference:
    """Counts of words that differ between one pass and recognition in parts, summed over recordings.

    Args:
        words: words recognised in one pass.
        words_near: words recognised in one pass that are near a seam.
        differing: words that differ.
        differing_near: words that differ and are near a seam.
    """

    words: int = 0
    words_near: int = 0
    differing: int = 0
    differing_near: int = 0

    def count(self, whole: Sequence[Word], cut: Sequence[Word], seams: Sequence[float]) -> None:
        """Add the counts of a recording, given its words in one pass (`whole`) and in parts (`cut`)."""

        def near(word: Word) -> bool:
            return any(word.start - NEAR_SECONDS <= seam <= word.end + NEAR_SECONDS for seam in seams)

        self.words += len(whole)
        self.words_near += sum(map(near, whole))
        compared = jiwer.process_words(" ".join(word.text for word in whole), " ".join(word.text for word in cut))
        for chunk in compared.alignments[0]:
            if chunk.type != "equal":
                spans = (whole[chunk.ref_start_idx : chunk.ref_end_idx], cut[chunk.hyp_start_idx : chunk.hyp_end_idx])
                differing = max(spans, key=len)
                self.differing += len(differing)
                self.differing_near += sum(map(near, differing))


def _comparison(options: argparse.Namespace, utterances: list[Utterance], settings: Inference, folder: Path) -> Results:
    recognizer = load_recognizer(options.model)
    draw = random.Random(0)
    recordings = [
        concatenate(
            draw.sample(utterances, len(utterances)),
            draw.uniform(*COMPARED_SECONDS),
            options.pause,
            folder / f"{number}.wav",
        )
        for number in range(options.recordings)
    ]
    max_seconds = 2 * COMPARED_SECONDS[1]
    one_pass = Inference(BatchBounds(batch_seconds=max_seconds, max_utterances=1), ChunkBounds(max_seconds, 0))
    wholes = [recognizer.transcribe([recording.path], one_pass)[0] for recording in recordings]
    table = Results("long_recording_compared", COMPARISON, bars="words that differ")
    for method in options.methods:
        difference, cut_errors, whole_errors = Difference(), [], []
        for recording, whole in zip(recordings, wholes, strict=True):
            method_settings = replace(settings, segmenter=SEGMENTERS[method])
            cut, seams = recognize_with_seams(recognizer, recording, method_settings, method)
            difference.count(whole.words, cut.words, seams)
            cut_errors.append(_errors(recognizer, recording, cut))
            whole_errors.append(_errors(recognizer, recording, whole))
        has_texts = all(recording.text for recording in recordings)
        wers = [total(errors).rate if has_texts else None for errors in (cut_errors, whole_errors)]
        differing = _fraction(difference.differing, difference.words)
        differing_near = _fraction(difference.differing_near, difference.differing)
        words_near = _fraction(difference.words_near, difference.words)
        table.row(method, difference.words, differing, differing_near, words_near, *wers)
    return table


def recognize_with_seams(
    recognizer: Recognizer, recording: Recording, settings: Inference, method: str
) -> tuple[Transcript, list[float]]:
    """Transcribe a recording; return the transcript, and the times in seconds at which chunks or segments meet."""
    utterance = whole_file(recording.path, "0")
    [result] = recognizer.segments([utterance], settings)
    if isinstance(result, Rejected):
        raise InputError(result.reason)
    segments = list(result[1])
    seams = [start for start, _ in segments[1:]]
    if method == "chunks":
        sample_rate = recognizer.model.features.sample_rate
        samples = settings.chunks.samples(sample_rate, recognizer.model.frame_samples)
        waveform = load_waveform(recording.path, sample_rate)
        seams += [chunk.keep / sample_rate for chunk in cut_chunks([waveform], *samples)][1:]
    return recognizer.transcript(utterance.duration, iter(segments)), seams


if __name__ == "__main__":
    run_command(main)
