"""python -m benchmarks.loading: speed of a loader worker, and time that a trainer waits for batches."""

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

from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance
from benchmarks import results
from benchmarks.features import SAMPLE_RATE
from benchmarks.loaders import Alone, Corpus, Lhotse, Ours, Torchaudio, speech_data
from benchmarks.machine import about, measure
from benchmarks.model import read_utterances
from benchmarks.plan import TRAIN_MINI
from benchmarks.race import enter, race
from benchmarks.results import Columns, Results, fixed, share

FRAMES_PER_SECOND = 100
ALONE = "decoding and features alone"
SPEED, MASKS = "speed_perturb", "spec_augment"  # names in conf/augment
TEXT = "so the evening went as evenings go and "  # repeated as the text of utterances without one
CHARACTERS_PER_SECOND = 14


def main(arguments: Sequence[str] | None = None) -> int:
    """Time each loader with one worker, then measure the waiting time of a simulated trainer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    parser.add_argument(
        "audio", nargs="*", metavar="AUDIO", help=f"manifests, files or folders (default: {TRAIN_MINI})"
    )
    parser.add_argument(
        "--utterances",
        type=int,
        default=500,
        metavar="N",
        help="utterances to draw at random from AUDIO (default: 500)",
    )
    parser.add_argument(
        "--batch-seconds", type=float, default=100.0, metavar="S", help="upper bound of a batch's padded seconds"
    )
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="workers of the simulated trainer")
    parser.add_argument(
        "--hours",
        nargs="*",
        type=float,
        default=[10, math.inf],
        metavar="H",
        help="audio hours per minute that the simulated trainer uses",
    )
    results.add_options(parser)
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = about(options, measure())
    with corpus_of(options.audio, options.utterances, options.batch_seconds) as corpus:
        facts["audio"] = corpus.source
        print(f"{corpus.source}\n")
        one_worker(corpus, options.turns).save(options.output_dir, facts)
        replays(corpus, options.workers, options.hours).save(options.output_dir, facts)
    return 0


def one_worker(corpus: Corpus, turns: int) -> Results:
    """Print one row per loader; CPU time includes its worker and the process that receives the batches."""
    makers: dict[str, Callable[[], Iterable[int]]] = {ALONE: lambda: Alone(corpus)}
    for augment in ([], [SPEED], [MASKS], [SPEED, MASKS]):
        makers[" + ".join(["asr", *augment])] = functools.partial(Ours, corpus, augment)
    peers: dict[str, Callable[..., Iterable[int]]] = {"torchaudio": Torchaudio, "lhotse": Lhotse}
    for name, loader in peers.items():
        makers[name] = functools.partial(loader, corpus, augmented=False)
        makers[f"{name} + speed + masks"] = functools.partial(loader, corpus, augmented=True)
    loaders = enter(makers)
    audio_seconds = {name: sum(loader) / FRAMES_PER_SECOND for name, loader in loaders.items()}  # also a warm-up
    loader_turns = race(
        {name: functools.partial(sum, loader) for name, loader in loaders.items()}, turns=turns, warm_up=0
    )
    columns: Columns = {
        "loader": str,
        "CPU ms/audio minute": fixed(1),
        "audio s/CPU s": fixed(0),
        "of decoding and features": share,
    }
    table = Results("loading", columns, bars="audio s/CPU s")
    rates = {name: audio_seconds[name] / turn.cpu_seconds for name, turn in loader_turns.items()}
    for name, rate in rates.items():
        table.row(name, 60_000 / rate, rate, rate / rates[ALONE])
    return table


def replays(corpus: Corpus, workers: int, hours: Sequence[float]) -> Results:
    """Print one row per speed of a simulated trainer, which loads an epoch of asr's batches.

    The speeds assume one core per worker. If there are fewer cores, the speeds are reduced in proportion.
    """
    cores = min(workers, len(os.sched_getaffinity(0)))
    columns: Columns = {
        "trainer, audio hours/minute": str,
        "workers": str,
        "cores": str,
        "audio s/s on these cores": fixed(0),
    }
    columns |= {"data-wait": share, "first batch s": fixed(2), "first batch of the next epoch s": fixed(2)}
    columns |= {"reached, audio hours/minute": fixed(0)}
    table = Results("loading_replay", columns, bars="data-wait", group_by=("workers", "cores"))
    for hours_per_minute in hours:
        rate = hours_per_minute * 60 * cores / workers  # audio seconds per second
        waits = replay(corpus, workers, rate)
        reached = waits.audio_seconds / waits.elapsed / 60 * workers / cores
        figures = waits.between / waits.elapsed, waits.first, waits.next_epoch, reached
        table.row(f"{hours_per_minute:g}", str(workers), str(cores), None if rate == math.inf else rate, *figures)
    return table


class Waits(NamedTuple):
    """Times that a trainer waited for data, in wall-clock seconds, measured like train/data_wait.

    Args:
        first: wait for the first batch of the run, which includes the start of the workers.
        between: sum of the waits for the other batches.
        next_epoch: wait for the first batch of the next epoch.
        elapsed: time from the arrival of the first batch to the end of the last step.
        audio_seconds: audio of all batches.
    """

    first: float
    between: float
    next_epoch: float
    elapsed: float
    audio_seconds: float


def replay(corpus: Corpus, workers: int, rate: float) -> Waits:
    """Load an epoch for a trainer of `rate` audio seconds per second, whose steps sleep instead of computing."""
    data = speech_data(corpus, [SPEED, MASKS], workers)
    waits, audio_seconds, start, end = [], 0.0, math.nan, math.nan
    for batch in data.train_dataloader():
        waits.append(data.waiting.take())
        start = time.monotonic() if len(waits) == 1 else start
        seconds = float(batch.feature_lengths.sum()) / FRAMES_PER_SECOND
        audio_seconds += seconds
        time.sleep(seconds / rate)
        end = time.monotonic()
    data.waiting.take()
    assert data.trainer is not None
    data.trainer.current_epoch = 1  # type: ignore[misc]
    next(iter(data.train_dataloader()))
    return Waits(waits[0], sum(waits[1:]), data.waiting.take(), end - start, audio_seconds)


@contextmanager
def corpus_of(audio: Sequence[str], count: int, batch_seconds: float) -> Iterator[Corpus]:
    """Draw `count` utterances with texts from `audio`; default: LibriSpeech's train-mini or, if absent, noise."""
    paths = list(audio) or [str(TRAIN_MINI)] * TRAIN_MINI.is_dir()
    with tempfile.TemporaryDirectory() as folder:
        if not paths:
            write_noise(Path(folder), count)
        utterances = list(read_utterances(paths or [folder]))
        sample = random.Random(0).sample(utterances, min(count, len(utterances)))
        seconds = sum(utterance.duration for utterance in sample)
        origin = " ".join(paths) if paths else "generated noise, because train-mini is absent"
        source = f"audio: {len(sample)} utterances, {seconds:.0f} s, from {origin}"
        yield Corpus([with_text(utterance) for utterance in sample], batch_seconds, source)


def with_text(utterance: Utterance) -> Utterance:
    """Return the utterance, with a text of typical length if it has none."""
    length = round(utterance.duration * CHARACTERS_PER_SECOND)
    return replace(utterance, text=utterance.text or (TEXT * (1 + length // len(TEXT)))[:length])


def write_noise(folder: Path, count: int) -> None:
    """Write FLAC files of 2 to 17 s of modulated low-pass noise, which compresses about as well as speech."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        samples = torch.randn(int(SAMPLE_RATE * (2 + 15 * number / count)), generator=generator)
        low = torch.nn.functional.avg_pool1d(samples[None], 8, stride=1)[0]
        loudness = torch.sin(
            torch.arange(len(low)) * (2 * torch.pi * 2 / SAMPLE_RATE)
        ).square()  # 4 syllables per second
        soundfile.write(folder / f"{number}.flac", (0.2 * low * loudness).numpy(), SAMPLE_RATE)


if __name__ == "__main__":
    run_command(main)
