"""python -m benchmarks.gpu.training: compare training runs on a device with a reference run on this machine's CPU.

All runs use the same batches of a corpus of tones, without dropout. Each row has the difference of its losses from
the reference (CPU, float32), the time spent waiting for data, the peak memory, and asr.doctor's forecast of it.
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

from asr.apps.doctor.examination import Manifests
from asr.apps.doctor.forecast import forecast, fresh_model
from asr.base.text.normalize import get_normalizer
from asr.core.cli.command import run_command
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.run.settings import RunSettings, read_run_settings
from asr.errors import InputError
from asr.train import train
from benchmarks import results
from benchmarks.features import composed
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed, share
from tests.tones import sentences, write_corpus

NAME = "gpu_training"
ENDED = "yes"  # value of `ended` if the run reached its number of steps
REFERENCE = "CPU, float32"
TENSORS = "tensors"  # the name of a forecast's line on memory
RUNS = {  # training runs on the device, and their overrides for asr.train
    "float32": ["trainer.precision=32-true"],
    "bfloat16": ["trainer.precision=bf16-mixed"],
    "bfloat16, features on the device": ["trainer.precision=bf16-mixed", "data.features_on=device"],
}
OVERRIDES = [
    *("corpus.name=tones", "corpus.prepare=null", "corpus.test=[]", "augment=[]"),
    *("encoder.block.dropout=0", "encoder.subsampling.dropout=0", "data.sorted_epochs=0"),
    *("trainer.max_epochs=-1", "trainer.log_every_n_steps=1", "checkpoint.select=last", "schedule.warmup_steps=5"),
]


class Run(NamedTuple):
    """Measurements of one training run.

    Args:
        losses: loss of each logged step.
        steps: number of steps.
        speed: seconds of audio per second, median over the steps.
        data_wait: fraction of the time spent waiting for data, median over the steps.
        peak: peak of allocated GPU memory in bytes; None on a CPU.
        ended: "yes", or the error that stopped the run.
    """

    losses: list[float]
    steps: int
    speed: float | None
    data_wait: float | None
    peak: float | None
    ended: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per training run; return 1 if any of them stopped early, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.training", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: cuda)")
    parser.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--without-reference", action="store_true", help="skip the run on the CPU")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps of each run (default: 20)")
    parser.add_argument(
        "--utterances", type=int, default=200, metavar="N", help="utterances in the corpus (default: 200)"
    )
    parser.add_argument(
        "--words",
        type=int,
        default=4,
        metavar="N",
        help="words of the longest utterance, half a second each (default: 4)",
    )
    parser.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of every run")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    columns: Columns = {
        "run": str,
        "steps": fixed(0),
        "last loss": fixed(3),
        "mean loss difference": share,
        "max loss difference": share,
    }
    columns |= {"not finite": fixed(0), "audio s/s": fixed(0), "data wait": share, "peak GB": fixed(2)}
    table = Results(NAME, columns | {"forecast": str, "ended": str}, bars="audio s/s")
    with tempfile.TemporaryDirectory() as folder:
        words = (max(1, options.words // 2), options.words)
        texts = {"train": sentences(options.utterances, seed=1, words=words), "valid": sentences(2, seed=2)}
        write_corpus(Path(folder), texts)
        common = [*OVERRIDES, f"corpus.dir={folder}", f"trainer.max_steps={options.steps}", *options.overrides]
        expected: list[float] = []
        if not options.without_reference:
            cores = len(os.sched_getaffinity(0))
            cpu_overrides = ["trainer.accelerator=cpu", f"num_threads={cores}", f"run_dir={folder}/processor"]
            reference = run(settings_of(*cpu_overrides, *common), "cpu")
            expected = reference.losses
            _row(table, REFERENCE, reference, expected, None)
            table.write(options.output_dir, facts)
        on_card = options.device.startswith("cuda")
        for number, name in enumerate(options.runs):
            device_overrides = ["trainer=gpu"] if on_card else ["trainer.accelerator=cpu"]
            settings = settings_of(*device_overrides, *common, *RUNS[name], f"run_dir={folder}/{number}")
            forecast_text = forecast_of(settings) if on_card else None
            _row(table, name, run(settings, options.device), expected, forecast_text)
            table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)
    return int(any(row["ended"] != ENDED for row in table.rows))


def _row(table: Results, name: str, run: Run, expected: list[float], forecast_text: str | None) -> None:
    pairs = list(zip(run.losses, expected, strict=False))
    differences = [abs(loss - reference) / abs(reference) for loss, reference in pairs]
    mean = sum(differences) / len(differences) if differences else None
    not_finite = sum(not math.isfinite(loss) for loss in run.losses)
    last = run.losses[-1] if run.losses else None
    figures = mean, max(differences, default=None), not_finite, run.speed, run.data_wait, run.peak and run.peak / 1e9
    table.row(name, run.steps, last, *figures, forecast_text, run.ended)


def settings_of(*overrides: str) -> RunSettings:
    """Return the run settings of conf/train.yaml with overrides."""
    return read_run_settings(composed(*overrides))


def forecast_of(settings: RunSettings) -> str:
    """Return asr.doctor's forecast of the memory of the tensors in a training run's largest step."""
    manifests = Manifests(IndexCache(settings.data.index_dir))
    corpus = read_corpus(settings.corpus, get_normalizer(settings.components["normalizer"]), manifests)
    model, utterances, _ = fresh_model(settings, corpus, sample=corpus)
    texts = (dict(part.facts).get(TENSORS) for part in forecast(settings, utterances, model))
    return next((text for text in texts if text is not None), "none")  # the steps that follow are not measured


def run(settings: RunSettings, device: str) -> Run:
    """Train, and return the measurements; they include the error of a run that stops early."""
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
    losses, number = [float(step["train/loss"]) for step in steps], int(steps[-1]["step"]) if steps else 0
    return Run(losses, number, speed, wait, peak, ended)


def _median(steps: Sequence[Mapping[str, str]], name: str) -> float | None:
    values = [float(step[f"train/{name}"]) for step in steps]
    return median(values) if values else None


if __name__ == "__main__":
    run_command(main)
