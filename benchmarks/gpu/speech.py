"""python -m benchmarks.gpu.speech: train a recogniser on real speech, from random weights, within a given time.

The folder of --audio has manifests train*.jsonl, dev*.jsonl and test*.jsonl and, for a 3-gram, the texts lm.txt.gz, as
`benchmarks.gpu.pack` writes them. All files are first decoded to 16-bit WAV by all cores. A trial of 20 steps shows how
many epochs fit into the time. The WER is that of greedy search, and of a beam search with the 3-gram.
"""

import argparse
import csv
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import soundfile
import torch

from asr import evaluate, ngram
from asr.apps.finetune.settings import RunSeconds, deadline_choice
from asr.base.audio.load import load_waveform
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from benchmarks import results
from benchmarks.gpu.training import ENDED, forecast_of, run, settings_of
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed, share

NAME, CURVE = "gpu_speech", "gpu_speech_curve"
SAMPLE_RATE = 16000  # Hz
TEXTS = "lm.txt.gz"  # texts of the language model, in the folder of audio
DECODING, TRIAL, TRAINING, WAITING, MEMORY = "decoding", "trial of 20 steps", "training", "waiting for data", "memory"
GREEDY, WITH_LM = "greedy", "3-gram"
RESERVE = 45.0  # seconds for the search with the language model, and what is not measured
MARGIN = 0.92  # share of the rest that the epochs are planned to take
# Tuned on dev-mini for the model of two stages in recipes/librispeech/README.md: asr.tune takes minutes.
LM_WEIGHTS = ("--lm-weight", "0.6", "--word-insertion-bonus", "1.5", "--unknown-score", "-18")
VALIDATIONS = 12  # maximum number in a run
VALIDATION_SHARE = 0.2  # maximum share of the time of a run
RECOGNITION_SPEED = 2.5  # relative to the training, which also has a backward pass
RECIPE = [  # recipes/librispeech/README.md shows why there is neither dropout nor SpecAugment
    *("experiment=librispeech_2h", "encoder=conformer_s", "encoder.block.dropout=0", "encoder.subsampling.dropout=0"),
    *("corpus.prepare=null", "corpus.also_test=[]"),
]
ON_DEVICE = {"cuda": ["trainer=gpu", "data.batch_seconds=100"], "cpu": ["trainer.accelerator=cpu"]}
TINY = [
    *("encoder=conformer_xs", "encoder.dim=16", "encoder.num_layers=2", "encoder.block.num_heads=2"),
    "encoder.subsampling.num_channels=4",
]
TINY_UTTERANCES = 20  # of each manifest


class Speech(NamedTuple):
    """Decoded speech.

    Args:
        manifests: manifests by kind: train, dev and test.
        seconds: seconds of audio by kind.
        utterances: number of utterances by kind.
    """

    manifests: dict[str, list[Path]]
    seconds: dict[str, float]
    utterances: dict[str, int]

    def overrides(self) -> list[str]:
        """Return the settings of asr.train for this corpus."""
        lists = {"train": "train", "valid": "dev", "test": "test"}
        names = (f"corpus.{key}=[{','.join(map(str, self.manifests[kind]))}]" for key, kind in lists.items())
        return [f"corpus.dir={self.manifests['train'][0].parent}", *names]


class Table:
    """The rows of results, which are saved whenever one is added; each has the seconds since the one before."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.facts, self.begin = folder, about(options), time.monotonic()
        columns: Columns = {
            "measurement": str,
            "seconds": fixed(1),
            "value": lambda value: f"{value:,.4g}",
            "unit": str,
        }
        self.results = Results(NAME, columns | {"notes": str}, bars="seconds")

    def add(self, name: str, value: float | None, unit: str, notes: str | None = None) -> float:
        """Add a row; return its seconds."""
        seconds = time.monotonic() - self.begin
        self.begin += seconds
        self.results.row(name, seconds, value, unit, notes)
        self.results.write(self.folder, self.facts)
        return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per measurement, and the curve; return 1 if the training stopped early, otherwise 0."""
    end = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.speech", description=__doc__)
    parser.add_argument("--audio", type=Path, required=True, metavar="FOLDER", help="manifests and audio")
    parser.add_argument("--device", choices=[*ON_DEVICE], default="cuda", help="default: cuda")
    parser.add_argument("--seconds", type=float, default=300.0, metavar="S", help="time limit (default: 300)")
    parser.add_argument("--tiny", action="store_true", help="a tiny network and few utterances, to test the program")
    parser.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of asr.train")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    end += options.seconds
    folder = options.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    table = Table(folder, options)
    with tempfile.TemporaryDirectory() as wav:  # hundreds of megabytes; the results are copied from the machine
        return measure(table, Path(wav), end, options)


def measure(table: Table, wav: Path, end: float, options: argparse.Namespace) -> int:
    """Decode, plan, train and evaluate; add the rows."""
    begin, cores = time.monotonic(), len(os.sched_getaffinity(0))
    speech = decode(options.audio, wav, cores, TINY_UTTERANCES if options.tiny else None)
    audio = sum(speech.seconds.values())
    files = f"{sum(speech.utterances.values()):,} files, {audio / 3600:.2f} h, {cores} cores"
    table.add(DECODING, audio / (time.monotonic() - begin), "s/s", files)
    common = [*RECIPE, *ON_DEVICE[options.device], *speech.overrides(), f"num_threads={torch.get_num_threads()}"]
    common += [*(TINY if options.tiny else []), *options.overrides]
    short = ["trainer.max_epochs=-1", "trainer.max_steps=20", "trainer.log_every_n_steps=1", "data.sorted_epochs=0"]
    short += ["checkpoint.select=last", "corpus.test=[]", f"run_dir={wav / 'trial'}"]
    trial = run(settings_of(*common, *short), options.device)
    startup = table.add(TRIAL, trial.speed, "s/s", trial.ended)
    if trial.speed is None:
        raise InputError(f"the trial must take steps; it ended: {trial.ended}.")
    plan, notes = planned(speech, trial.speed, startup, end - time.monotonic(), 2 if options.tiny else math.inf)
    run_dir = table.folder / "run"
    settings = settings_of(*common, *plan, f"run_dir={run_dir}")
    forecast = forecast_of(settings)
    table.add("forecast and plan", None, "", notes)
    trained = run(settings, options.device)
    table.add(TRAINING, trained.speed, "s/s", f"{trained.steps:,} steps; ended: {trained.ended}")
    table.add(WAITING, trained.data_wait, "of a step")
    table.add(MEMORY, None if trained.peak is None else trained.peak / 1e9, "GB", f"forecast: {forecast}")
    draw_curve(run_dir, table)
    tested = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    add_word_errors(table, GREEDY, tested)
    if (options.audio / TEXTS).is_file():
        add_word_errors(table, WITH_LM, with_language_model(run_dir, speech, options))
    return int(trained.ended != ENDED)


def decode(source: Path, target: Path, cores: int, limit: int | None = None) -> Speech:
    """Decode the audio of all manifests in a folder to 16-bit WAV files in another; write manifests of these files.

    Args:
        source: folder of the manifests.
        target: an empty folder.
        cores: number of processes.
        limit: maximum number of utterances of each manifest.
    """
    speech = Speech({}, {}, {})
    # Forked processes could wait for ever for a lock that a thread of torch or of a decoder held.
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for kind in ("train", "dev", "test"):
            paths = sorted(source.glob(f"{kind}*.jsonl"))
            if not paths:
                raise InputError(f"{source}: must have manifests {kind}*.jsonl; it has none. Run benchmarks.gpu.pack.")
            speech.manifests[kind] = [target / path.name for path in paths]
            speech.seconds[kind], speech.utterances[kind] = 0.0, 0
            for path, manifest in zip(paths, speech.manifests[kind], strict=True):
                utterances = read_manifest(path)[:limit]
                folder = target / path.stem
                folder.mkdir()
                files = [folder / f"{number}.wav" for number in range(len(utterances))]
                decoded = [*pool.map(decode_file, utterances, files, chunksize=8)]
                write_manifest(manifest, decoded)
                speech.seconds[kind] += sum(utterance.duration for utterance in decoded)
                speech.utterances[kind] += len(decoded)
    return speech


def decode_file(utterance: Utterance, path: Path) -> Utterance:
    """Write an utterance's audio to a WAV file; return the utterance of that file."""
    offset, duration = utterance.offset, None if utterance.offset is None else utterance.duration
    waveform = load_waveform(utterance.audio_filepath, SAMPLE_RATE, offset=offset, duration=duration)
    soundfile.write(path, waveform.numpy(), SAMPLE_RATE, subtype="PCM_16")
    return replace(utterance, audio_filepath=str(path), offset=None, duration=len(waveform) / SAMPLE_RATE)


def planned(
    speech: Speech, speed: float, startup: float, left: float, max_epochs: float = math.inf
) -> tuple[list[str], str]:
    """Return the settings of the longest training that fits into `left` seconds, and a note.

    Args:
        speech: the corpus.
        speed: seconds of audio trained on per second.
        startup: seconds that a run needs in addition to its steps.
        left: seconds until the end, including the evaluation.
        max_epochs: maximum number of epochs.
    """
    tests = RESERVE + 2 * speech.seconds["test"] / (RECOGNITION_SPEED * speed)
    epoch, validation = speech.seconds["train"] / speed, 1 + speech.seconds["dev"] / (RECOGNITION_SPEED * speed)
    budget = MARGIN * (left - tests - startup)
    validations = min(VALIDATIONS, max(1, math.floor(VALIDATION_SHARE * budget / validation)))
    steps = budget - validations * validation
    if steps <= 0:
        raise InputError(f"--seconds must leave time for steps; {-steps:.0f} s are missing. Give more.")
    epochs, every = max(1, math.floor(min(steps / epoch, max_epochs))), 1
    overrides = [*deadline_choice(left / 3600, RunSeconds(0, 0, tests)).overrides]
    if steps < epoch:
        number = max(1, math.floor(speech.utterances["train"] * steps / epoch))
        overrides.append(f"data.max_train_utterances={number}")
    if epochs > validations:
        every = math.ceil(epochs / validations)
        epochs -= epochs % every
    else:
        overrides.append(f"+trainer.val_check_interval={epochs / validations:.3f}")
    overrides += [f"trainer.max_epochs={epochs}", f"trainer.check_val_every_n_epoch={every}"]
    share_of_epoch = f", {steps / epoch:.0%} of the utterances" if steps < epoch else ""
    return overrides, f"{epochs} epochs{share_of_epoch}; an epoch of the whole takes {epoch:.1f} s"


def draw_curve(run_dir: Path, table: Table) -> None:
    """Print and save one row per validation."""
    columns: Columns = {
        "epoch": fixed(1),
        "step": fixed(0),
        "train loss": fixed(3),
        "dev loss": fixed(3),
        "dev WER": share,
    }
    curve = Results(CURVE, columns, bars="dev loss")
    loss = None
    with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            loss = float(line["train/loss"]) if line["train/loss"] else loss
            if line.get("valid/loss"):
                curve.row(
                    *(float(line[key]) for key in ("epoch", "step")),
                    loss,
                    *(float(line[f"valid/{key}"]) for key in ("loss", "wer")),
                )
    curve.save(table.folder, table.facts)


def add_word_errors(table: Table, search: str, tested: Mapping[str, Mapping[str, Any]]) -> None:
    """Add one row per test manifest."""
    for name, result in tested.items():
        errors = sum(result[kind] for kind in ("substitutions", "insertions", "deletions"))
        words = result["reference_words"]
        table.add(f"{name}, {search}", result["wer"], "WER", f"{errors:,} errors of {words:,} words")


def with_language_model(run_dir: Path, speech: Speech, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the results of a beam search with the 3-gram on the tests."""
    arpa, target = run_dir / "words.arpa", run_dir / WITH_LM
    ngram.main([str(options.audio / TEXTS), "--order", "3", "-o", str(arpa)])
    tests = [str(path) for path in speech.manifests["test"]]
    how = ["--device", options.device, "--lm", str(arpa), *LM_WEIGHTS, "--output-dir", str(target)]
    evaluate.main([str(run_dir), *tests, *how])
    names = [path.stem for path in speech.manifests["test"]]
    return {name: json.loads((target / f"{name}.wer.json").read_text(encoding="utf-8")) for name in names}


if __name__ == "__main__":
    run_command(main)
