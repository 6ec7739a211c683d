"""python -m benchmarks.streaming: errors, latency and CPU time of streaming recognition, by chunk size.

Recognition runs on one thread. Recordings are fed in pieces, as from a microphone. The latency of a word is the audio
fed between its end and its first appearance, plus the CPU time of that call. The end of a word comes from an alignment
of the reference with the whole recording; misrecognised words have no latency. The last words of a recording become
final when the recording ends; no silence is appended. The page has histograms of the latencies of each chunk size.
MODEL must support streaming; the default model does not, so without a MODEL nothing is measured.
"""

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr.apps.web.chart import Axis, histogram
from asr.base.text.word_errors import count_errors, total
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.data.batch import Rejected
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance
from asr.core.recognition.aligned_segments import aligned_reference
from asr.core.recognition.cached_stream import CachedStream, advance
from asr.core.recognition.captions import StreamSettings
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import Stream, why_not
from asr.core.recognition.transcript import Word
from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import MODEL, add_model, read_utterances
from benchmarks.results import Columns, Results, fixed

CHUNKS = (0.16, 0.32, 0.64, 1.28)
PIECE_SECONDS = 0.04  # audio that is fed per call
BIN_SECONDS = 0.1  # width of a histogram's bar, or a multiple of it
MAX_BINS = 40
COLUMNS: Columns = {
    "chunk": str,
    "WER": lambda value: f"{value:.2%}",
    "errors": str,
    "provisional, median s": fixed(2),
    "provisional, 95 % s": fixed(2),
    "final, median s": fixed(2),
    "final, 95 % s": fixed(2),
    "real-time factor": fixed(3),
    "streams per core": fixed(1),
}


def streaming_recognizer(model: str) -> Recognizer | None:
    """Load a model for streams; None, with a line that says so, if it is the default and does not support them."""
    recognizer = load_recognizer(model)
    reason = why_not(recognizer)
    if reason and model == MODEL:
        print(f"{MODEL}: left out, because it does not support streaming; name a streaming model", flush=True)
        return None
    if reason:
        raise InputError(f"MODEL must support streaming; {reason}.")
    return recognizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per chunk size, and one for recordings recognised as a whole."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--chunk-seconds", type=float, nargs="+", default=CHUNKS, metavar="S", help="chunk sizes, one row each"
    )
    parser.add_argument(
        "--left-seconds", type=float, metavar="S", help="left context of a chunk (default: the model's)"
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=20,
        metavar="N",
        help="streams in a batch, to measure streams per core (default: 20)",
    )
    parser.add_argument(
        "--right-seconds", type=float, metavar="S", help="right context of a chunk (default: the model's)"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if (recognizer := streaming_recognizer(options.model)) is None:
        return 0
    if (encoder := recognizer.model.encoder.streaming) is not None:
        encoder.chunk_frames = None  # a recording is aligned, and recognised as a whole, in one chunk
    recordings = list(read_recordings(recognizer, options.audio))
    if not recordings:
        raise InputError("AUDIO must contain an utterance whose text can be aligned; it contains none.")
    facts = about(options)
    table = Results("streaming", COLUMNS, bars="final, 95 % s")
    delays: dict[str, Sequence[float]] = {}
    for chunk in options.chunk_seconds:
        seconds = (chunk, options.left_seconds, options.right_seconds)
        settings = StreamSettings(*seconds, endpoint_seconds=None, settled_seconds=None)
        timed_words = [stream_recording(recognizer, recording, *seconds) for recording in recordings]
        streams = [CachedStream(recognizer, settings) for _ in range(options.streams)]
        num_streams = streams_per_core(recognizer, recordings, streams)
        name = f"{chunk:g} + {streams[0].right_seconds:g} s"
        measured = row(table, name, recognizer, recordings, timed_words, num_streams)
        delays |= {f"{name}: words shown": measured.shown, f"{name}: words final": measured.final}
    timed_words = [recognize_whole(recognizer, recording) for recording in recordings]
    row(table, "whole", recognizer, recordings, timed_words, None)
    table.figures += delay_histograms(delays)
    table.save(options.output_dir, facts)
    return 0


class Recording(NamedTuple):
    """An utterance, its waveform, and the words of its text with their times."""

    utterance: Utterance
    waveform: Tensor
    words: Sequence[Word]


class TimedWords(NamedTuple):
    """The recognised words of a recording, and when they appeared.

    Args:
        words: the final words.
        shown: time in seconds at which each word first appeared.
        final: time in seconds at which each word became final.
        cpu_seconds: CPU time of the recording.
    """

    words: list[str]
    shown: list[float]
    final: list[float]
    cpu_seconds: float


def read_recordings(recognizer: Recognizer, paths: Sequence[str]) -> Iterator[Recording]:
    """Read utterances and align their texts with the audio.

    Raises:
        InputError: an utterance cannot be read.
    """
    for result in recognizer.segments(list(read_utterances(paths))):
        if isinstance(result, Rejected):
            raise InputError(result.reason)
        utterance, segments = result
        log_probs = torch.cat([recognizer.log_probs(encoder_out) for _, encoder_out in segments])
        words = aligned_reference(recognizer, utterance, log_probs).transcript.words
        yield Recording(utterance, load_utterance(utterance, recognizer.model.features.sample_rate), words)


def stream_recording(
    recognizer: Recognizer, recording: Recording, chunk: float, left: float | None, right: float | None
) -> TimedWords:
    """Feed a recording to a stream in pieces; `chunk`, `left` and `right` context are in seconds."""
    stream = Stream(recognizer, chunk_seconds=chunk, left_seconds=left, right_seconds=right)
    words: list[str] = []
    final: list[float] = []
    first: dict[tuple[int, str], float] = {}  # (position, text) of a word -> time of its first appearance
    fed, cpu = 0, 0.0
    pieces = [*recording.waveform.split(round(PIECE_SECONDS * stream.sample_rate)), None]
    for piece in pieces:
        start = time.process_time()
        captions = stream.finish() if piece is None else stream.feed(piece)
        duration = time.process_time() - start
        fed, cpu = fed + (0 if piece is None else len(piece)), cpu + duration
        now = fed / stream.sample_rate + duration
        words += [word.text for word in captions.final]
        final += [now] * len(captions.final)
        texts = [*words, *(word.text for word in captions.partial)]
        for position in range(len(words) - len(captions.final), len(texts)):
            first.setdefault((position, texts[position]), now)
    return TimedWords(words, [first[position, word] for position, word in enumerate(words)], final, cpu)


def recognize_whole(recognizer: Recognizer, recording: Recording) -> TimedWords:
    """Recognise a recording as a whole, after its end."""
    start = time.process_time()
    [transcript] = recognizer.transcribe([recording.waveform], sample_rate=16_000)
    cpu = time.process_time() - start
    words = [word.text for word in transcript.words]
    at_end = [recording.utterance.duration + cpu] * len(words)
    return TimedWords(words, at_end, at_end, cpu)


@torch.inference_mode()
def streams_per_core(recognizer: Recognizer, recordings: Sequence[Recording], streams: Sequence[CachedStream]) -> float:
    """Return the number of streams that one core processes in real time, measured with all streams in one batch."""
    number, size = len(streams), round(streams[0].chunk_seconds * recognizer.model.features.sample_rate)
    waveforms = [recordings[index % len(recordings)].waveform for index in range(number)]
    length = min(map(len, waveforms)) // size * size or min(map(len, waveforms))
    begin = time.process_time()
    for start in range(0, length, size):
        for stream, waveform in zip(streams, waveforms, strict=True):
            stream.hear(waveform[start : min(start + size, length)], at_end=start + size >= length)
        advance(streams)
    duration = time.process_time() - begin
    return number * length / recognizer.model.features.sample_rate / duration


class Delays(NamedTuple):
    """Seconds from the end of each correct word until it was first shown, and until it was final."""

    shown: list[float]
    final: list[float]


def matches(reference: Sequence[Word], words: Sequence[str]) -> Iterator[tuple[Word, int]]:
    """Yield each word of the reference that was recognised, and its position in the recognised words."""
    texts = [word.text for word in reference]
    for block in SequenceMatcher(None, texts, words, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            yield reference[block.a + offset], block.b + offset


def word_delays(recordings: Sequence[Recording], timed_words: Sequence[TimedWords]) -> Delays:
    """Return the delays of the correct words of all recordings."""
    delays = Delays([], [])
    for recording, result in zip(recordings, timed_words, strict=True):
        for word, position in matches(recording.words, result.words):
            delays.shown.append(result.shown[position] - word.end)
            delays.final.append(result.final[position] - word.end)
    return delays


def quantiles(*delays: Sequence[float]) -> list[float | None]:
    """Return the median and the 95th percentile of each list; None if it is empty."""
    return [
        value
        for each in delays
        for value in (np.quantile(np.array(each), [0.5, 0.95]).tolist() if each else [None, None])
    ]


def delay_histograms(delays: Mapping[str, Sequence[float]]) -> list[str]:
    """Draw a histogram of each list of delays that is not empty, all with the same bins."""
    delays = {name: seconds for name, seconds in delays.items() if seconds}
    if not delays:
        return []
    every = [value for seconds in delays.values() for value in seconds]
    first, last = math.floor(min(every) / BIN_SECONDS), math.floor(max(every) / BIN_SECONDS) + 1
    step = math.ceil((last - first) / MAX_BINS)
    edges = [number * BIN_SECONDS for number in range(first, last + step, step)]
    charts = []
    for name, seconds in delays.items():
        middle, high = quantiles(seconds)
        counts = np.histogram(seconds, edges)[0].tolist()
        note = f"{len(seconds)} delays: median {middle:.2f} s, 95th percentile {high:.2f} s"
        charts.append(histogram(name, Axis("delay, s", fixed(2)), Axis("number"), edges, [("number", counts)], note))
    return charts


def row(
    table: Results,
    name: str,
    recognizer: Recognizer,
    recordings: Sequence[Recording],
    timed_words: Sequence[TimedWords],
    streams: float | None,
) -> Delays:
    """Print the row of one chunk size; return the delays of its words."""
    score = recognizer.model.scored_by
    pairs = [
        (score(recording.utterance.text), score(" ".join(result.words)))
        for recording, result in zip(recordings, timed_words, strict=True)
    ]
    errors = total(count_errors(*pair) for pair in pairs)
    delays = word_delays(recordings, timed_words)
    seconds = sum(len(recording.waveform) for recording in recordings) / recognizer.model.features.sample_rate
    factor = sum(result.cpu_seconds for result in timed_words) / seconds
    table.row(name, errors.rate, f"{errors.errors} of {errors.reference_length}", *quantiles(*delays), factor, streams)
    return delays


if __name__ == "__main__":
    run_command(main)
