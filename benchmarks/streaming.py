"""python -m benchmarks.streaming: what it costs to hear speech while it is spoken, by the size of the chunks.

One thread. Each recording is fed piece by piece, as a microphone would; a word's latency is from its end, where the
reference says it by alignment with the whole, to the sample that was fed when it was first shown, and the CPU time
that was needed then. Words that are wrong have none. A recording's end ends its last words: no silence is waited for.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr.checkpoint.load import load_recognizer
from asr.cli.command import run_command
from asr.data.batch import Rejected
from asr.data.dataset import load_utterance
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.evaluation.word_errors import count_errors, total
from asr.recognition.aligned_segments import aligned_reference
from asr.recognition.cached_stream import CachedStream, advance
from asr.recognition.recognizer import Recognizer
from asr.recognition.stream_settings import StreamSettings
from asr.recognition.streaming import Stream, why_not
from asr.recognition.transcript import Word
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import add_model, read_utterances
from benchmarks.results import Results, fixed

CHUNKS = (0.16, 0.32, 0.64, 1.28)
PIECE_SECONDS = 0.04  # that are fed at a time
COLUMNS: dict[str, Callable[[Any], str]] = {
    "chunk": str,
    "WER": lambda value: f"{value:.2%}",
    "errors": str,
    "partial, median s": fixed(2),
    "partial, 95 % s": fixed(2),
    "final, median s": fixed(2),
    "final, 95 % s": fixed(2),
    "real-time factor": fixed(3),
    "streams a core": fixed(1),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each size of the chunks, and one for recordings as a whole."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__)
    add_model(parser)
    parser.add_argument("--chunk-seconds", type=float, nargs="+", default=CHUNKS, metavar="S", help="one row each")
    parser.add_argument("--left-seconds", type=float, metavar="S", help="seen before a chunk (default: the model's)")
    parser.add_argument("--streams", type=int, default=20, metavar="N", help="at once, for streams a core (20)")
    parser.add_argument("--right-seconds", type=float, metavar="S", help="seen behind a chunk (default: the model's)")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recognizer = load_recognizer(given.model)
    if reason := why_not(recognizer):
        raise InputError(f"MODEL must go on from chunk to chunk; {reason}.")
    recognizer.model.encoder.chunk_frames = None
    recordings = list(read_recordings(recognizer, given.audio))
    if not recordings:
        raise InputError("AUDIO must hold an utterance whose text can be aligned; it holds none.")
    facts = about(given)
    table = Results("streaming", COLUMNS, bars="final, 95 % s")
    for chunk in given.chunk_seconds:
        seconds = (chunk, given.left_seconds, given.right_seconds)
        settings = StreamSettings(*seconds, endpoint_seconds=None, settled_seconds=None)
        told = [listen(recognizer, recording, *seconds) for recording in recordings]
        streams = [CachedStream(recognizer, settings) for _ in range(given.streams)]
        many = streams_a_core(recognizer, recordings, streams)
        row(table, f"{chunk:g} + {streams[0].right_seconds:g} s", recognizer, recordings, told, many)
    told = [listen_to_whole(recognizer, recording) for recording in recordings]
    row(table, "whole", recognizer, recordings, told, None)
    table.keep(given.output_dir, facts)
    return 0


class Recording(NamedTuple):
    """Speech, and when its words are said."""

    utterance: Utterance
    waveform: Tensor
    words: Sequence[Word]


class Told(NamedTuple):
    """What was recognised, and when: words, seconds at which each was first shown, and was final; CPU seconds."""

    words: list[str]
    shown: list[float]
    final: list[float]
    cpu_seconds: float


def read_recordings(recognizer: Recognizer, paths: Sequence[str]) -> Iterator[Recording]:
    """Read the utterances, and align their texts; those that cannot be are left out."""
    for result in recognizer.segments(list(read_utterances(paths))):
        if isinstance(result, Rejected):
            raise InputError(result.reason)
        utterance, segments = result
        log_probs = torch.cat([recognizer.log_probs(encoder_out) for _, encoder_out in segments])
        words = aligned_reference(recognizer, utterance, log_probs).transcript.words
        yield Recording(utterance, load_utterance(utterance, recognizer.model.features.sample_rate), words)


def listen(recognizer: Recognizer, recording: Recording, chunk: float, left: float | None, right: float | None) -> Told:
    """Feed a recording."""
    stream = Stream(recognizer, chunk_seconds=chunk, left_seconds=left, right_seconds=right)
    words: list[str] = []
    final: list[float] = []
    first: dict[tuple[int, str], float] = {}  # place and text of a word, to when it was shown
    heard, cpu = 0, 0.0
    pieces = [*recording.waveform.split(round(PIECE_SECONDS * stream.sample_rate)), None]
    for piece in pieces:
        begin = time.process_time()
        captions = stream.finish() if piece is None else stream.feed(piece)
        taken = time.process_time() - begin
        heard, cpu = heard + (0 if piece is None else len(piece)), cpu + taken
        now = heard / stream.sample_rate + taken
        words += [word.text for word in captions.final]
        final += [now] * len(captions.final)
        texts = [*words, *(word.text for word in captions.partial)]
        for place in range(len(words) - len(captions.final), len(texts)):
            first.setdefault((place, texts[place]), now)
    return Told(words, [first[place, word] for place, word in enumerate(words)], final, cpu)


def listen_to_whole(recognizer: Recognizer, recording: Recording) -> Told:
    """Recognise a recording when it is over."""
    begin = time.process_time()
    [transcript] = recognizer.transcribe([recording.waveform], sample_rate=16_000)
    cpu = time.process_time() - begin
    words = [word.text for word in transcript.words]
    at_end = [recording.utterance.duration + cpu] * len(words)
    return Told(words, at_end, at_end, cpu)


@torch.inference_mode()
def streams_a_core(recognizer: Recognizer, recordings: Sequence[Recording], streams: Sequence[CachedStream]) -> float:
    """Tell how many streams one core keeps up with, when so many go through the net as one batch."""
    number, size = len(streams), round(streams[0].chunk_seconds * recognizer.model.features.sample_rate)
    waveforms = [recordings[place % len(recordings)].waveform for place in range(number)]
    shortest = min(map(len, waveforms)) // size * size or min(map(len, waveforms))
    begin = time.process_time()
    for start in range(0, shortest, size):
        for stream, waveform in zip(streams, waveforms, strict=True):
            stream.hear(waveform[start : min(start + size, shortest)], at_end=start + size >= shortest)
        advance(streams)
    taken = time.process_time() - begin
    return number * shortest / recognizer.model.features.sample_rate / taken


def row(
    table: Results,
    name: str,
    recognizer: Recognizer,
    recordings: Sequence[Recording],
    told: Sequence[Told],
    streams: float | None,
) -> None:
    """Print a row."""
    score = recognizer.model.scored_by
    pairs = [
        (score(each.utterance.text), score(" ".join(said.words))) for each, said in zip(recordings, told, strict=True)
    ]
    errors = total(count_errors(*pair) for pair in pairs)
    late: list[tuple[float, float]] = []  # of each word that is right: until it was shown, and final
    for recording, said in zip(recordings, told, strict=True):
        reference = [word.text for word in recording.words]
        for block in SequenceMatcher(None, reference, said.words, autojunk=False).get_matching_blocks():
            for offset in range(block.size):
                end, place = recording.words[block.a + offset].end, block.b + offset
                late.append((said.shown[place] - end, said.final[place] - end))
    quantiles = np.quantile(np.array(late or [(np.nan, np.nan)]), [0.5, 0.95], axis=0).T.flatten().tolist()
    seconds = sum(len(each.waveform) for each in recordings) / recognizer.model.features.sample_rate
    factor = sum(said.cpu_seconds for said in told) / seconds
    table.row(name, errors.rate, f"{errors.errors} of {errors.reference_length}", *quantiles, factor, streams)


if __name__ == "__main__":
    run_command(main)
