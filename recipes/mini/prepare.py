"""Write a corpus without a download: espeak-ng speaks two hours of everyday sentences in many voices.

python -m recipes.mini.prepare --output-dir data/mini
python -m recipes.mini.prepare --language german --output-dir data/mini_german
"""

import argparse
import math
import os
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asr.base.audio.encode import encode_audio
from asr.base.system.files import UNFINISHED
from asr.base.system.lock import alone_in
from asr.base.system.processes import die_with_parent
from asr.core.data.manifest import Utterance, write_manifest
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.mini.english import ENGLISH
from recipes.mini.espeak import Espeak, require_espeak
from recipes.mini.german import GERMAN
from recipes.mini.language import Language
from recipes.mini.plan import SPLITS, Line, plan
from recipes.mini.room import SAMPLE_RATE, record
from recipes.output import claim

LANGUAGES = {"english": ENGLISH, "german": GERMAN}
RECIPE = "recipes.mini.prepare"
AUDIO = "audio"  # folder
_CHUNK = 50  # utterances per process
DEFAULT_HOURS = 2.0
_MAX_HOURS = 10.0  # with more, the grammar begins to run out of new sentences
_SAMPLES = 3  # printed sentences of each split


def prepare(
    output_dir: Path, *, hours: float, seed: int, num_processes: int, language: Language = ENGLISH
) -> dict[str, list[Utterance]]:
    """Synthesise the corpus into a folder, then write its manifests, which exist only if all audio is complete.

    Output of an earlier call is replaced after all audio has been synthesised.

    Args:
        output_dir: folder of the corpus.
        hours: approximate number of hours of training speech.
        seed: seed of the choice of sentences, voices and rooms.
        num_processes: number of processes that run at the same time.
        language: language of the corpus.

    Returns:
        The utterances of each split.

    Raises:
        InputError: an argument is out of range, the folder has files that this recipe would replace
            and did not write, another process writes there, or espeak-ng is missing or fails.
        OSError: the folder cannot be written.
    """
    if not (math.isfinite(hours) and 0 < hours <= _MAX_HOURS):
        raise InputError(f"--hours must be more than 0 and at most {_MAX_HOURS:g}; got {hours}.")
    if num_processes < 1:
        raise InputError(f"--num-processes must be at least 1; got {num_processes}.")
    require_espeak()
    lines = plan(hours, seed, language)
    manifests = [f"{split}.jsonl" for split in SPLITS]
    claim(output_dir, RECIPE, [*manifests, AUDIO])
    with alone_in(output_dir):
        unfinished = output_dir / f".{AUDIO}{UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a run that was killed
        try:
            for split in SPLITS:
                (unfinished / AUDIO / split).mkdir(parents=True)
            durations = _speak_all(lines, unfinished, num_processes)
            for manifest in manifests:
                (output_dir / manifest).unlink(missing_ok=True)
            for line in lines:
                (output_dir / line.audio_path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(unfinished / line.audio_path, output_dir / line.audio_path)
            _remove_stale(output_dir, {output_dir / line.audio_path for line in lines})
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        corpus: dict[str, list[Utterance]] = {split: [] for split in SPLITS}
        for line in lines:
            audio, labels = str(output_dir / line.audio_path), {"language": language.code}
            utterance = Utterance(audio, durations[line.id], line.text, line.id, speaker=line.voice, labels=labels)
            corpus[line.split].append(utterance)
        for split, utterances in corpus.items():
            write_manifest(output_dir / f"{split}.jsonl", utterances)
    return corpus


def _remove_stale(output_dir: Path, planned: set[Path]) -> None:
    """Remove the audio files of an earlier, longer run; this recipe's file names identify them."""
    for split in SPLITS:
        for audio in (output_dir / AUDIO / split).glob(f"{split}-*.flac"):
            if audio not in planned:
                audio.unlink()


def chunked(lines: list[Line]) -> list[list[Line]]:
    """Divide the lines into chunks; a new process speaks the lines of each chunk in order.

    espeak has state, so samples depend on the previous sentences. With chunks, samples depend neither on the number
    nor on the order of processes. No chunk spans two splits, so more hours of training speech do not change valid and
    test.
    """
    by_split = [[line for line in lines if line.split == split] for split in SPLITS]
    return [
        split_lines[start : start + _CHUNK] for split_lines in by_split for start in range(0, len(split_lines), _CHUNK)
    ]


def _speak_all(lines: list[Line], output_dir: Path, num_processes: int) -> dict[str, float]:
    """Write the audio of all lines; return their durations by id."""
    durations: dict[str, float] = {}
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("speaking", total=len(lines))
        threads = ThreadPoolExecutor(num_processes)
        try:
            begun = [threads.submit(_in_fresh_process, chunk, output_dir) for chunk in chunked(lines)]
            for chunk_durations in as_completed(begun):
                durations |= chunk_durations.result()
                progress.update(task, completed=len(durations))
        finally:
            threads.shutdown(cancel_futures=True)
    return durations


def _in_fresh_process(lines: list[Line], output_dir: Path) -> dict[str, float]:
    with ProcessPoolExecutor(1, get_context("spawn"), _begin_worker, (os.getpid(),)) as process:
        try:
            return process.submit(_speak_chunk, lines, output_dir).result()
        except BrokenProcessPool:
            raise InputError(
                f"espeak-ng must speak {lines[0].id} to {lines[-1].id}; its process died. "
                "Check that memory is free. If it dies again, reinstall espeakng-loader or try another --seed."
            ) from None


def _begin_worker(parent_id: int) -> None:
    """Ignore Ctrl-C, since the parent waits for started chunks; end when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_id)


def _speak_chunk(lines: list[Line], output_dir: Path) -> dict[str, float]:
    """Write the audio of the lines of a chunk; return their durations by id."""
    espeak = Espeak()
    durations: dict[str, float] = {}
    for line in lines:
        sentences = [
            espeak.speak(
                sentence,
                line.voice,
                words_per_minute=line.words_per_minute,
                pitch=line.pitch,
                pitch_range=line.pitch_range,
            )
            for sentence in line.sentences
        ]
        waveform = record(sentences, line.pauses, line.silences, espeak.sample_rate, np.random.default_rng(line.seed))
        # libsndfile would not raise OSError if the disk is full
        (output_dir / line.audio_path).write_bytes(encode_audio(waveform, SAMPLE_RATE, "FLAC", "PCM_16"))
        durations[line.id] = len(waveform) / SAMPLE_RATE
    return durations


def _report(corpus: dict[str, list[Utterance]]) -> None:
    """Print the size of each split, and some of its sentences."""
    table = Table(box=SIMPLE)
    table.add_column("split")
    for heading in ("utterances", "hours", "voices", "sentences", "words", "distinct words"):
        table.add_column(heading, justify="right")
    for split, utterances in corpus.items():
        words = [word for utterance in utterances for word in utterance.text.split()]
        voices = {utterance.speaker for utterance in utterances}
        sentences = {utterance.text for utterance in utterances}
        hours = sum(utterance.duration for utterance in utterances) / 3600
        counts = (len(voices), len(sentences), len(words), len(set(words)))
        table.add_row(split, f"{len(utterances):,}", f"{hours:.2f}", *(f"{count:,}" for count in counts))
    Console().print(table)
    for split, utterances in corpus.items():
        for utterance in utterances[:_SAMPLES]:
            print(f"{split}: {utterance.text}  ({utterance.speaker})")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(
        RECIPE,
        __doc__,
        _add_options,
        _run,
        arguments,
        must=ROOM,
        interrupted=": no manifests were written; run the same command again.",
    )


def _run(options: argparse.Namespace) -> None:
    corpus = prepare(
        options.output_dir,
        hours=options.hours,
        seed=options.seed,
        num_processes=options.num_processes,
        language=LANGUAGES[options.language],
    )
    _report(corpus)


def _add_options(add: AddOption) -> None:
    add("--output-dir", type=Path, required=True, help="for train.jsonl, valid.jsonl, test.jsonl and audio/")
    add("--language", choices=LANGUAGES, default="english", help="language of the corpus (default: english)")
    add(
        "--hours",
        type=float,
        default=DEFAULT_HOURS,
        help="approximate hours of training speech; 0 < hours <= 10 (default: 2)",
    )
    add("--seed", type=int, default=0, help="seed of the sentences, speaking styles and rooms (default: 0)")
    add("--num-processes", type=int, default=os.cpu_count() or 1, help="number of processes (default: all cores)")


if __name__ == "__main__":
    sys.exit(main())
