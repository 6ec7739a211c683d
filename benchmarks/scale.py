"""python -m benchmarks.scale MODEL AUDIO...: how time and memory grow from 1 to 10 to 100 times the work.

A slope of 1 means that ten times the work takes ten times as long; with a slope of 2 it takes a hundred times as long.
"""

import argparse
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from hydra import compose
from omegaconf import OmegaConf

from asr import compare, doctor, evaluate, training_report
from asr.apps.report.evaluation import About, evaluation_report
from asr.apps.web.clips import NO_CLIPS
from asr.base.audio.load import load_waveform
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance
from asr.core.evaluation.utterances import read_scored
from asr.core.run.names import METRICS
from asr.core.run.settings import read_run_settings
from asr.core.training.hydra_command import initialized_hydra
from benchmarks import results
from benchmarks.corpus import Cost, measured
from benchmarks.long_recording import SAMPLE_RATE, concatenate
from benchmarks.machine import about, in_fresh_process
from benchmarks.model import add_model, read_utterances
from benchmarks.nets import OURS, make_batch, make_net
from benchmarks.results import Results, fixed
from benchmarks.train_step import training_step

FACTORS = (1, 10, 100)
RECORDINGS = 16  # number of different recordings, which manifests of any size repeat
SECONDS = 10.0  # duration of a recording
PAUSE_SECONDS = 0.4  # pause between the utterances of a recording
STEP_SECONDS = 2.0  # duration of the utterances of a training step
VALIDATION_STEPS = 100  # training steps from one validation to the next
MANIFEST = "recordings.jsonl"


class Task(NamedTuple):
    """Work whose time and memory are measured.

    Args:
        name: name of the task.
        unit: unit of the amount.
        amount: amount of work at the smallest size.
        run: called with the folder, the model and the amount; returns the cost.
    """

    name: str
    unit: str
    amount: float
    run: Callable[[Path, str, float], Cost]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each task and size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--factors",
        type=int,
        nargs="+",
        default=FACTORS,
        metavar="N",
        help="factors by which the smallest amounts of work are multiplied, one row each (default: 1 10 100)",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        metavar="X",
        help="factor by which the smallest amount of work of every task is multiplied (default: 1)",
    )
    names = [task.name for task in TASKS]
    parser.add_argument(
        "--tasks", nargs="+", choices=names, default=names, metavar="NAME", help="tasks to measure (default: all)"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options)
    folder = options.output_dir / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Callable[[float], str]] = {"CPU s": fixed(2), "MB": fixed(0), "slope of time": fixed(2)}
    columns |= {"slope of memory": fixed(2)}
    table = Results("scale", {"task": str, "amount": str, **columns}, bars="slope of time", group_by=("task",))
    try:
        write_recordings(folder, read_utterances(options.audio))
        for task in TASKS:
            if task.name not in options.tasks:
                continue
            before: tuple[float, Cost] | None = None
            for factor in options.factors:
                amount = max(1, round(task.amount * options.share * factor))
                cost = in_fresh_process(task.run, folder, str(Path(options.model).resolve()), amount)
                slopes = [None, None] if before is None else slopes_of(*before, amount, cost)
                table.row(task.name, f"{amount:,} {task.unit}", cost.cpu_seconds, cost.megabytes, *slopes)
                before = amount, cost
    finally:
        shutil.rmtree(folder)
    table.save(options.output_dir, facts)
    return 0


def slopes_of(amount: float, cost: Cost, more: float, greater: Cost) -> list[float | None]:
    """Return the log-log slopes of CPU seconds and memory between two amounts; None where a value is not positive."""
    pairs = (cost.cpu_seconds, greater.cpu_seconds), (cost.megabytes, greater.megabytes)
    return [
        math.log(high / low) / math.log(more / amount) if low > 0 and high > 0 and more != amount else None
        for low, high in pairs
    ]


# ---- input


def write_recordings(folder: Path, utterances: Iterable[Utterance]) -> None:
    """Write recordings made of utterances, and a manifest of them."""
    source = itertools.cycle(utterances)
    lines = []
    for number in range(RECORDINGS):
        recording = concatenate(source, SECONDS, PAUSE_SECONDS, folder / f"{number}.wav")
        seconds = load_waveform(recording.path, SAMPLE_RATE).numel() / SAMPLE_RATE
        entry = {"audio_filepath": str(recording.path.resolve()), "duration": seconds, "text": recording.text}
        lines.append(entry | {"speaker": str(number % 4)})
    (folder / MANIFEST).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def entries(folder: Path, amount: float) -> Iterator[dict[str, object]]:
    """Yield lines of a manifest with this many utterances, each with an id of its own."""
    lines = [json.loads(line) for line in (folder / MANIFEST).read_text(encoding="utf-8").splitlines()]
    for number, line in zip(range(int(amount)), itertools.cycle(lines), strict=False):
        yield line | {"id": f"utterance-{number}"}


def write_manifest(folder: Path, name: str, amount: float) -> Path:
    """Write a manifest with this many utterances."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries(folder, amount)), encoding="utf-8")
    return path


def write_scored(folder: Path, name: str, amount: float, every: int) -> Path:
    """Write results of an evaluation: one error in each utterance whose number is a multiple of `every`."""
    path = folder / f"{name}.utterances.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, entry in enumerate(entries(folder, amount)):
            words = str(entry["text"]).lower().split()
            reference = " ".join(words)
            if number % every == 0:
                words[number % len(words)] = "error"
            step = float(str(entry["duration"])) / len(words)
            timed = [
                {"text": word, "start": place * step, "end": (place + 1) * step, "confidence": 0.9}
                for place, word in enumerate(words)
            ]
            hypothesis = {"reference": reference, "hypothesis": " ".join(words), "raw_hypothesis": " ".join(words)}
            line = entry | {"subset": name, "offset": None, "words": timed, "confidence": 0.9} | hypothesis
            file.write(json.dumps(line) + "\n")
    return path


def quiet(function: Callable[[], object]) -> Cost:
    """Measure a command, and discard its output."""
    with (Path("/dev/null")).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return measured(function)


# ---- tasks


def step_of(count: int, seconds: float) -> Cost:
    """Measure a training step of the Conformer S."""
    torch.manual_seed(0)
    net, batch = make_net(OURS, "conformer_s"), make_batch(count, seconds)
    return measured(training_step(net, batch, torch.float32))


def step_of_utterances(folder: Path, model: str, amount: float) -> Cost:
    """Measure a training step of this many utterances."""
    return step_of(int(amount), STEP_SECONDS)


def step_of_seconds(folder: Path, model: str, amount: float) -> Cost:
    """Measure a training step of one utterance of this many seconds."""
    return step_of(1, amount)


def recognize_utterances(folder: Path, model: str, amount: float) -> Cost:
    """Measure the recognition of this many recordings."""
    recognizer = load_recognizer(model)
    paths = [str(entry["audio_filepath"]) for entry in entries(folder, amount)]
    return measured(lambda: recognizer.transcribe(paths))


def recognize_seconds(folder: Path, model: str, amount: float) -> Cost:
    """Measure the recognition of one recording of this many seconds."""
    recognizer = load_recognizer(model)
    utterances = itertools.cycle(read_utterances([str(write_manifest(folder, "source", RECORDINGS))]))
    recording = concatenate(utterances, amount, PAUSE_SECONDS, folder / "long.wav")
    return measured(lambda: recognizer.transcribe([recording.path]))


def evaluate_utterances(folder: Path, model: str, amount: float) -> Cost:
    """Measure asr.evaluate with its report."""
    manifest = write_manifest(folder, "evaluated", amount)
    options = [model, str(manifest), "--output-dir", str(folder / "evaluation"), "--report", str(folder / "page.html")]
    return quiet(lambda: evaluate.main(options))


def page_of_evaluation(folder: Path, model: str, amount: float) -> Cost:
    """Measure the creation of an evaluation's page from written results, without recordings."""
    path = write_scored(folder, "page", amount, every=3)
    return measured(lambda: evaluation_report(read_scored(path), About("Scale", [("Model", model)]), NO_CLIPS))


def page_of_comparison(folder: Path, model: str, amount: float) -> Cost:
    """Measure asr.compare of two evaluations, with its page."""
    first, second = (write_scored(folder, name, amount, every) for name, every in (("a", 3), ("b", 5)))
    second.write_text(second.read_text(encoding="utf-8").replace('"subset": "b"', '"subset": "a"'), encoding="utf-8")
    page = str(folder / "comparison.html")
    return quiet(lambda: compare.main([str(first), str(second), "--report", page, "--report-audio", "0"]))


def page_of_training(folder: Path, model: str, amount: float) -> Cost:
    """Measure the creation of the report of a run with this many logged steps."""
    run_dir = folder / f"run-{int(amount)}"
    run_dir.mkdir()
    with (run_dir / METRICS).open("w", encoding="utf-8") as file:
        file.write("step,epoch,train/loss,train/grad_norm,lr,valid/loss,valid/wer\n")
        for step in range(int(amount)):
            last = f"{3 / (1 + step):.6f},{1 / (1 + step):.6f}" if step % VALIDATION_STEPS == 0 else ","
            file.write(f"{step},{step // 1000},{5 / (1 + step):.6f},{1 + step % 7},0.001,{last}\n")
    return quiet(lambda: training_report.main([str(run_dir)]))


def examine(folder: Path, model: str, amount: float) -> Cost:
    """Measure asr.doctor on a corpus of this many utterances, all of which it reads."""
    corpus = folder / f"corpus-{int(amount)}"
    corpus.mkdir()
    for name, count in (("train", amount), ("valid", RECORDINGS)):
        lines = ({**entry, "id": f"{name}-{entry['id']}"} for entry in entries(folder, count))
        (corpus / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    overrides = [
        *("corpus.name=scale", f"corpus.dir={corpus.resolve()}", "corpus.train=[train.jsonl]"),
        *("corpus.valid=[valid.jsonl]", "corpus.test=[]", "corpus.prepare=null", f"run_dir={corpus / 'run'}"),
        *("encoder=conformer_xs", f"doctor.max_utterances={int(amount) + RECORDINGS}"),
    ]
    with initialized_hydra():
        composed = OmegaConf.to_container(compose("train", overrides), resolve=True)
    settings = read_run_settings(composed)  # type: ignore[arg-type]
    return quiet(lambda: doctor.doctor(settings))


TASKS = (
    Task("training step", "utterances of 2 s", 1, step_of_utterances),
    Task("training step of one utterance", "s", 1, step_of_seconds),  # 200 s takes more than 17 GB
    Task("recognition", "recordings of 10 s", 2, recognize_utterances),
    Task("recognition of one recording", "s", 18, recognize_seconds),
    Task("asr.evaluate with its report", "recordings of 10 s", 36, evaluate_utterances),  # 10 hours at the largest size
    Task("page of an evaluation", "utterances", 200, page_of_evaluation),
    Task("asr.compare with its page", "utterances", 1_000, page_of_comparison),
    Task("page of a run", "logged steps", 1_000, page_of_training),
    Task("asr.doctor", "utterances of 10 s", 16, examine),
)

if __name__ == "__main__":
    run_command(main)
