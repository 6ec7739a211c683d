"""python -m benchmarks.turns: the ends of turns in streams, by the pause between utterances.

Utterances of AUDIO are joined with pauses of zeros to recordings of 2 to 4 utterances, and fed in pieces as from a
microphone. A pause is counted from the last sample of an utterance to the first of the next one. An event is an end
(`is_end`) that a stream reports; its place is the end of the last final word before it. An event whose place is more
than a quarter of a second before the end of the utterance's last word is false; another one belongs to the pause after
the utterance. Delays are the audio fed since the end of the word, or of the utterance's last word for an event, plus
the CPU time of that call. The ends of words come from an alignment of the text with the utterance alone. Events of the
last utterance, which no pause follows, do not count. A model without the piece <EOU> ends segments by silence alone.
The page has histograms of the delays of events and words for each pause.
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.text.hidden_pieces import END_OF_UTTERANCE
from asr.core.cli.command import run_command
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import Stream
from asr.core.recognition.transcript import Word
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import add_model
from benchmarks.results import Columns, Results, fixed
from benchmarks.streaming import (
    PIECE_SECONDS,
    Recording,
    delay_histograms,
    matches,
    quantiles,
    read_recordings,
    streaming_recognizer,
)

PAUSES = (0.2, 0.5, 1.0, 2.0)
NUM_UTTERANCES = (2, 3, 4)
EARLY_SECONDS = 0.25
SILENCE_SECONDS = 2.0  # after the last utterance
COLUMNS: Columns = {
    "pause, s": str,
    "pauses": str,
    "events per pause": fixed(2),
    "pauses with an event": results.share,
    "false events": str,
    "event, median s": fixed(2),
    "event, 95 % s": fixed(2),
    "final word, median s": fixed(2),
    "final word, 95 % s": fixed(2),
}


class Joined(NamedTuple):
    """A recording of several utterances.

    Args:
        waveform: the samples.
        words: words of each utterance, with times in the recording.
    """

    waveform: Tensor
    words: list[list[Word]]


class Measured(NamedTuple):
    """What a stream reported for recordings.

    Args:
        events: number of events in each pause.
        num_false: number of events within utterances.
        event_delays: seconds from the end of an utterance's last word to the first event of the pause after it.
        word_delays: seconds from the end of each correct word until it was final.
    """

    events: list[int]
    num_false: int
    event_delays: list[float]
    word_delays: list[float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per pause."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    add_model(parser)
    parser.add_argument("--pauses", type=float, nargs="+", default=PAUSES, metavar="S", help="pauses, one row each")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if (recognizer := streaming_recognizer(options.model)) is None:
        return 0
    recordings = list(read_recordings(recognizer, options.audio))
    facts = about(options)
    has_piece = END_OF_UTTERANCE in recognizer.model.tokenizer.names
    table = Results(f"turns_{'piece' if has_piece else 'silence'}", COLUMNS, bars="event, median s")
    delays: dict[str, Sequence[float]] = {}
    for pause in options.pauses:
        measured = measure(recognizer, join(recordings, pause, recognizer.model.features.sample_rate))
        number = len(measured.events)
        found = sum(map(bool, measured.events))
        events = sum(measured.events) / number, found / number, str(measured.num_false)
        table.row(f"{pause:g}", str(number), *events, *quantiles(measured.event_delays, measured.word_delays))
        delays |= {
            f"{pause:g} s: events": measured.event_delays,
            f"{pause:g} s: words final": measured.word_delays,
        }
    table.figures += delay_histograms(delays)
    table.save(options.output_dir, facts)
    return 0


def join(recordings: Sequence[Recording], pause: float, sample_rate: int) -> list[Joined]:
    """Join utterances, in a random order that is the same for each pause, to recordings of 2 to 4 utterances."""
    draw, rest = random.Random(0), list(recordings)
    draw.shuffle(rest)
    joined = []
    while len(rest) >= max(NUM_UTTERANCES):
        number = draw.choice(NUM_UTTERANCES)
        parts, rest = rest[:number], rest[number:]
        waveform, words = torch.zeros(0), []
        for part in parts:
            start = len(waveform) / sample_rate
            words.append([replace(word, start=word.start + start, end=word.end + start) for word in part.words])
            seconds = SILENCE_SECONDS if part is parts[-1] else pause
            waveform = torch.cat([waveform, part.waveform, torch.zeros(round(seconds * sample_rate))])
        joined.append(Joined(waveform, words))
    return joined


def measure(recognizer: Recognizer, recordings: Sequence[Joined]) -> Measured:
    """Feed recordings to streams; return what they reported."""
    total = Measured([], 0, [], [])
    for recording in recordings:
        own = _measure(recognizer, recording)
        total = Measured(
            total.events + own.events,
            total.num_false + own.num_false,
            total.event_delays + own.event_delays,
            total.word_delays + own.word_delays,
        )
    return total


def _measure(recognizer: Recognizer, recording: Joined) -> Measured:
    stream = Stream(recognizer)
    words: list[Word] = []
    final: list[float] = []  # time at which each word became final
    events: list[tuple[float, float]] = []  # place and time of each event
    fed = 0
    for piece in recording.waveform.split(round(PIECE_SECONDS * stream.sample_rate)):
        start = time.process_time()
        captions = stream.feed(piece)
        fed += len(piece)
        now = fed / stream.sample_rate + time.process_time() - start
        words += captions.final
        final += [now] * len(captions.final)
        if captions.is_end and words:
            events.append((words[-1].end, now))
    ends = [of_utterance[-1].end for of_utterance in recording.words]
    begins = [of_utterance[0].start for of_utterance in recording.words]
    numbers, num_false, delays = [0] * (len(ends) - 1), 0, dict[int, float]()
    for place, now in events:
        turn = max((number for number, begin in enumerate(begins) if begin < place), default=0)
        if place < ends[turn] - EARLY_SECONDS:
            num_false += 1
        elif turn < len(numbers):
            numbers[turn] += 1
            delays.setdefault(turn, now - ends[turn])
    reference = [word for of_utterance in recording.words for word in of_utterance]
    texts = [word.text for word in words]
    word_delays = [final[position] - word.end for word, position in matches(reference, texts)]
    return Measured(numbers, num_false, [*delays.values()], word_delays)


if __name__ == "__main__":
    run_command(main)
