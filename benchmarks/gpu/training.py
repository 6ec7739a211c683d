"""python -m benchmarks.gpu.training: trainings on a device beside one on this machine's processor.

All train on the same batches of a corpus of tones, without dropout. A row shows how far its losses are from those of
the processor in float32, how long the training waited for data, and its memory beside asr.doctor's forecast.
"""

import argparse
import csv
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from asr.cli.command import run_command
from asr.data.corpus import read_corpus
from asr.diagnosis.examination import Manifests
from asr.diagnosis.forecast import forecast
from asr.diagnosis.model import fresh_model
from asr.errors import InputError
from asr.run.settings import RunSettings, read_run_settings
from asr.text.normalize import get_normalizer
from asr.train import train
from benchmarks import results
from benchmarks.features import composed
from benchmarks.machine import about
from benchmarks.results import Results, fixed, share
from tests.tones import sentences, write_corpus

NAME = "gpu_training"
ENDED = "yes"  # by its number of steps
REFERENCE = "processor, float32"
RUNS = {  # on the device: overrides of asr.train
    "float32": ["trainer.precision=32-true"],
    "bfloat16": ["trainer.precision=bf16-mixed"],
    "bfloat16, features on the device": ["trainer.precision=bf16-mixed", "data.features_on=device"],
}
OVERRIDES = [
    *("corpus.name=tones", "corpus.prepare=null", "corpus.test=[]", "augment=[]"),
    *("encoder.dropout=0", "encoder.subsampling.dropout=0", "data.lengths_per_doubling=16", "data.sorted_epochs=0"),
    *("trainer.max_epochs=-1", "trainer.log_every_n_steps=1", "checkpoint.select=last", "schedule.warmup_steps=20"),
]


class Run(NamedTuple):
    """What a training gave.

    Args:
        losses: of each step.
        speed: seconds of audio a second, the median over the steps.
        data_wait: share of the time in which it waited for data, the median.
        peak: bytes of a card's memory in use at most; None: it was on the processor.
        ended: "yes", or why it stopped.
    """

    losses: list[float]
    speed: float | None
    data_wait: float | None
    peak: float | None
    ended: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each training; the status is 1 if one has stopped early."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.training", description=__doc__)
    parser.add_argument("--name", default=NAME, help=f"of the result files ({NAME})")
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--without-reference", action="store_true", help="no training on the processor")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of each training (300)")
    parser.add_argument("--utterances", type=int, default=200, metavar="N", help="of the corpus (200)")
    parser.add_argument("--words", type=int, default=4, metavar="N", help="of an utterance at most, half a second each")
    parser.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE", help="of every training")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    columns = {"run": str, "steps": fixed(0), "last loss": fixed(3), "from the processor's": share, "at most": share}
    columns |= {"not finite": fixed(0), "audio s/s": fixed(0), "data wait": share, "peak GB": fixed(2)}
    table = Results(given.name, columns | {"forecast": str, "ended": str}, bars="audio s/s")
    with tempfile.TemporaryDirectory() as folder:
        words = (max(1, given.words // 2), given.words)
        texts = {"train": sentences(given.utterances, seed=1, words=words), "valid": sentences(2, seed=2)}
        write_corpus(Path(folder), texts)
        common = [*OVERRIDES, f"corpus.dir={folder}", f"trainer.max_steps={given.steps}", *given.overrides]
        expected: list[float] = []
        if not given.without_reference:
            cores = len(os.sched_getaffinity(0))
            on_processor = ["trainer.accelerator=cpu", f"num_threads={cores}", f"run_dir={folder}/processor"]
            reference = run(settings_of(*on_processor, *common), "cpu")
            expected = reference.losses
            _row(table, REFERENCE, reference, expected, None)
        on_card = given.device.startswith("cuda")
        for number, name in enumerate(given.runs):
            where = ["trainer=gpu"] if on_card else ["trainer.accelerator=cpu"]
            settings = settings_of(*where, *common, *RUNS[name], f"run_dir={folder}/{number}")
            wanted = forecast_of(settings) if on_card else None
            _row(table, name, run(settings, given.device), expected, wanted)
    table.keep(given.output_dir, facts)
    return int(any(row["ended"] != ENDED for row in table.rows))


def _row(table: Results, name: str, run: Run, expected: list[float], wanted: str | None) -> None:
    pairs = list(zip(run.losses, expected, strict=False))
    apart = [abs(mine - theirs) / abs(theirs) for mine, theirs in pairs]
    mean = sum(apart) / len(apart) if apart else None
    not_finite = sum(not math.isfinite(loss) for loss in run.losses)
    last = run.losses[-1] if run.losses else None
    figures = mean, max(apart, default=None), not_finite, run.speed, run.data_wait, run.peak and run.peak / 1e9
    table.row(name, len(run.losses), last, *figures, wanted, run.ended)


def settings_of(*overrides: str) -> RunSettings:
    """Compose conf/train.yaml with overrides."""
    return read_run_settings(composed(*overrides))


def forecast_of(settings: RunSettings) -> str:
    """Return what asr.doctor forecasts of a training's memory."""
    corpus = read_corpus(settings.corpus, get_normalizer(settings.components["normalizer"]), Manifests())
    model, utterances, _ = fresh_model(settings, corpus)
    tried = forecast(settings, utterances, model, lambda planned: None)
    return dict(tried.facts).get("memory", "it does not fit")


def run(settings: RunSettings, device: str) -> Run:
    """Train; a training that stops by itself, for a loss that is not finite say, is no error here."""
    on_card = device.startswith("cuda")
    if on_card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ended = ENDED
    try:
        train(settings)
    except InputError as error:
        ended = str(error)
    metrics = Path(settings.run_dir) / "metrics.csv"
    lines = list(csv.DictReader(metrics.open(encoding="utf-8"))) if metrics.is_file() else []
    steps = [line for line in lines if line["train/loss"]]
    peak = float(torch.cuda.max_memory_allocated()) if on_card else None
    speed, wait = _median(steps, "audio_seconds_per_second"), _median(steps, "data_wait")
    return Run([float(step["train/loss"]) for step in steps], speed, wait, peak, ended)


def _median(steps: Sequence[Mapping[str, str]], name: str) -> float | None:
    values = [float(step[f"train/{name}"]) for step in steps]
    return median(values) if values else None


if __name__ == "__main__":
    run_command(main)
