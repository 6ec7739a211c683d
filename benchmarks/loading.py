"""python -m benchmarks.loading: what a worker delivers of what it could at most, and whether a trainer waits for it."""

import argparse
import functools
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import soundfile
import torch

from asr.cli.command import run_command
from asr.data.manifest import Utterance
from benchmarks import results
from benchmarks.features import SAMPLE_RATE
from benchmarks.loaders import Alone, Corpus, Lhotse, Ours, Torchaudio, speech_data
from benchmarks.machine import about, measure
from benchmarks.model import read_utterances
from benchmarks.plan import TRAIN_MINI
from benchmarks.race import enter, race
from benchmarks.results import Results, fixed, share

FRAMES_PER_SECOND = 100
ALONE = "decoding and features alone"
SPEED, MASKS = "speed_perturb", "spec_augment"  # of conf/augment
TEXT = "so the evening went as evenings go and "  # again and again where no text is known
CHARACTERS_PER_SECOND = 14


def main(arguments: Sequence[str] | None = None) -> int:
    """Time one worker, then replay an epoch to a trainer that takes its time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help=f"manifests, files or folders ({TRAIN_MINI})")
    parser.add_argument("--utterances", type=int, default=500, metavar="N", help="of AUDIO, drawn at random (500)")
    parser.add_argument("--batch-seconds", type=float, default=100.0, metavar="S", help="bound of a batch")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="of the trainer")
    parser.add_argument(
        "--hours", nargs="*", type=float, default=[10, math.inf], metavar="H", help="of audio that it takes a minute"
    )
    results.add_options(parser)
    parser.set_defaults(turns=3)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = about(given, measure())
    with corpus_of(given.audio, given.utterances, given.batch_seconds) as corpus:
        facts["audio"] = corpus.source
        print(f"{corpus.source}\n")
        one_worker(corpus, given.turns).keep(given.output_dir, facts)
        replays(corpus, given.workers, given.hours).keep(given.output_dir, facts)
    return 0


def one_worker(corpus: Corpus, turns: int) -> Results:
    """Print a row for each loader: CPU seconds of its worker, and of the process that receives the batches."""
    makers: dict[str, Callable[[], Iterable[int]]] = {ALONE: lambda: Alone(corpus)}
    for augment in ([], [SPEED], [MASKS], [SPEED, MASKS]):
        makers[" + ".join(["asr", *augment])] = functools.partial(Ours, corpus, augment)
    for name, loader in {"torchaudio": Torchaudio, "lhotse": Lhotse}.items():
        makers[name] = functools.partial(loader, corpus, augmented=False)
        makers[f"{name} + speed + masks"] = functools.partial(loader, corpus, augmented=True)
    loaders = enter(makers)
    audio_seconds = {name: sum(loader) / FRAMES_PER_SECOND for name, loader in loaders.items()}  # and a warm-up
    turns_of = race({name: functools.partial(sum, loader) for name, loader in loaders.items()}, turns=turns, warm_up=0)
    columns = {"loader": str, "CPU ms an audio minute": fixed(1), "audio s a CPU s": fixed(0), "of alone": share}
    table = Results("loading", columns, bars="audio s a CPU s")
    rates = {name: audio_seconds[name] / turn.cpu_seconds for name, turn in turns_of.items()}
    for name, rate in rates.items():
        table.row(name, 60_000 / rate, rate, rate / rates[ALONE])
    return table


def replays(corpus: Corpus, workers: int, hours: Sequence[float]) -> Results:
    """Print a row for each rate: an epoch of our batches goes to a trainer that needs its time for each of them.

    The rates are of a trainer whose workers have a core each; where there are fewer cores they are that much lower.
    """
    cores = min(workers, len(os.sched_getaffinity(0)))
    columns = {"trainer, hours a minute": str, "workers": str, "cores": str, "on them, audio s a s": fixed(0)}
    columns |= {"data-wait": share, "first batch s": fixed(2), "of the next epoch s": fixed(2)}
    columns |= {"reached, hours a minute": fixed(0)}
    table = Results("loading_replay", columns, bars="data-wait", within=("workers", "cores"))
    for taken in hours:
        rate = taken * 60 * cores / workers  # audio seconds a second
        waits = replay(corpus, workers, rate)
        reached = waits.audio_seconds / waits.elapsed / 60 * workers / cores
        figures = waits.between / waits.elapsed, waits.first, waits.next_epoch, reached
        table.row(f"{taken:g}", str(workers), str(cores), None if rate == math.inf else rate, *figures)
    return table


class Waits(NamedTuple):
    """How long a trainer waited, in seconds by the clock, as train/data_wait counts it.

    Args:
        first: for the first batch of a run, while the workers start.
        between: for the others, all together.
        next_epoch: for the first batch of the epoch after it.
        elapsed: from the first batch until the last one was used.
        audio_seconds: of all batches.
    """

    first: float
    between: float
    next_epoch: float
    elapsed: float
    audio_seconds: float


def replay(corpus: Corpus, workers: int, rate: float) -> Waits:
    """Take an epoch's batches, and use each for its audio seconds divided by `rate`, without computing anything."""
    data = speech_data(corpus, [SPEED, MASKS], workers)
    waits, audio_seconds, began, used = [], 0.0, math.nan, math.nan
    for batch in data.train_dataloader():
        waits.append(data.waiting.take())
        began = time.monotonic() if len(waits) == 1 else began
        seconds = float(batch.feature_lengths.sum()) / FRAMES_PER_SECOND
        audio_seconds += seconds
        time.sleep(seconds / rate)
        used = time.monotonic()
    data.waiting.take()
    assert data.trainer is not None
    data.trainer.current_epoch = 1  # type: ignore[misc]
    next(iter(data.train_dataloader()))
    return Waits(waits[0], sum(waits[1:]), data.waiting.take(), used - began, audio_seconds)


@contextmanager
def corpus_of(audio: Sequence[str], count: int, batch_seconds: float) -> Iterator[Corpus]:
    """Draw utterances, with a text each; without audio they are of LibriSpeech, or where that is absent of noise."""
    given = list(audio) or [str(TRAIN_MINI)] * TRAIN_MINI.is_dir()
    with tempfile.TemporaryDirectory() as folder:
        if not given:
            write_noise(Path(folder), count)
        found = list(read_utterances(given or [folder]))
        chosen = random.Random(0).sample(found, min(count, len(found)))
        seconds = sum(utterance.duration for utterance in chosen)
        named = " ".join(given) if given else "noise, as a stand-in"
        source = f"audio: {len(chosen)} utterances, {seconds:.0f} s, of {named}"
        yield Corpus([with_text(utterance) for utterance in chosen], batch_seconds, source)


def with_text(utterance: Utterance) -> Utterance:
    """Give an utterance a text of the usual length where it has none."""
    length = round(utterance.duration * CHARACTERS_PER_SECOND)
    return replace(utterance, text=utterance.text or (TEXT * (1 + length // len(TEXT)))[:length])


def write_noise(folder: Path, count: int) -> None:
    """Write FLAC files of 2 to 17 s that pack about as well as speech: noise that rises and falls, most of it low."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        samples = torch.randn(int(SAMPLE_RATE * (2 + 15 * number / count)), generator=generator)
        low = torch.nn.functional.avg_pool1d(samples[None], 8, stride=1)[0]
        loudness = torch.sin(torch.arange(len(low)) * (2 * torch.pi * 2 / SAMPLE_RATE)).square()  # four syllables a s
        soundfile.write(folder / f"{number}.flac", (0.2 * low * loudness).numpy(), SAMPLE_RATE)


if __name__ == "__main__":
    run_command(main)
