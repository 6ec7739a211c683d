"""python -m benchmarks.export MODEL MANIFEST...: compare a model in torch, ONNX Runtime and sherpa-onnx.

Three tables are printed:

* Speed: seconds of audio recognised per second, by recording length, batch and threads. The contenders take turns.
* Totals: size on disk; peak memory; WER on all manifests; number of texts that differ from those of torch in float32;
  time from the start of a process to its first text. For torch, that process is asr.transcribe; for the others, the
  Python program in the README.md of the exported folder, which does not need torch.
* Cold start: the time to each stage of the start-up, in programs that do not import torch.

sherpa-onnx computes its own features; the other contenders use the features of asr.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asr.apps.export.sherpa_layouts import LAYOUTS
from asr.base.audio.load import load_waveform
from asr.base.text.normalize import get_normalizer
from asr.base.text.numbers import interval
from asr.base.text.word_errors import count_errors
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.evaluation.bootstrap import intervals
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.race import Turn, race
from benchmarks.results import Columns, Results, fixed

SAMPLE_RATE = 16000
MEMORY_SECONDS = 30  # length of the recording with which peak memory is measured
Transcribe = Callable[[list[np.ndarray]], list[str]]
Setting = tuple[int, float]  # number of recordings in a batch, and their length in seconds
SPEED: Columns = {
    "contender": str,
    "threads": fixed(0),
    "batch": fixed(0),
    "seconds": fixed(0),
    "audio s/s": fixed(1),
    "x torch float32": fixed(2),
}
TOTALS: Columns = {
    "contender": str,
    "MB on disk": fixed(1),
    "peak MB": fixed(0),
    "WER %": fixed(2),
    "95 % interval": str,
    "errors": fixed(0),
    "differing texts": fixed(0),
    "first text s": fixed(2),
}
COLD: Columns = {"program": str, "seconds": fixed(2), "CPU seconds": fixed(2)}
IMPORTS = "import numpy, onnxruntime, soundfile"
TORCH = "torch float32"  # the reference of all comparisons


class Contender(NamedTuple):
    """A runtime with a model.

    Args:
        name: name in the tables.
        path: path of the model, which is a bundle or an exported folder.
        kind: "torch", "onnx" or "sherpa".
        precision: torch's precision.
        file: name of the file whose size is reported.
    """

    name: str
    path: Path
    kind: str
    precision: str
    file: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model, and print tables of speeds, totals and cold starts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    model, manifest = Path("runs/mini/bundle"), "data/mini/test.jsonl"
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", type=Path, default=model, help=f"bundle (default: {model})"
    )
    manifest_help = f"manifest on which the WER is measured (default: {manifest})"
    parser.add_argument("manifests", metavar="MANIFEST", nargs="*", default=[manifest], help=manifest_help)
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[1, 10, 30], metavar="S", help="lengths of recordings"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="N", help="recordings in a batch")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of threads")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="contenders to run (default: all)")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    facts = about(options)
    utterances = [utterance for path in options.manifests for utterance in read_manifest(path)]
    with tempfile.TemporaryDirectory() as folder:
        contenders = make_contenders(options.model, Path(folder), options.contenders)
        measure_speeds(contenders, utterances, options).save(options.output_dir, facts)
        measure_totals(contenders, utterances, options.turns).save(options.output_dir, facts)
        cold, recording = (
            Results("export_cold", COLD, bars="seconds"),
            str(Path(utterances[0].audio_filepath).resolve()),
        )
        for name, turn in race(cold_parts(contenders, recording), turns=options.turns).items():
            cold.row(name, *turn)
        cold.save(options.output_dir, facts)
    return 0


def make_contenders(model: Path, folder: Path, names: Sequence[str] | None) -> list[Contender]:
    """Export the model in float32 and with 8-bit weights; return the contenders."""
    for name, options in (("float32", []), ("int8", ["--quantize", "int8"])):
        command = [sys.executable, "-m", "asr.export", str(model), "-o", str(folder / name), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    contenders = [
        Contender(TORCH, model, "torch", "float32", "weights.safetensors"),
        Contender("torch bfloat16", model, "torch", "bfloat16", "weights.safetensors"),
        Contender("ONNX float32", folder / "float32", "onnx", "float32", "model.onnx"),
        Contender("ONNX int8", folder / "int8", "onnx", "float32", "model.onnx"),
    ]
    if (folder / "float32" / "model-sherpa.onnx").is_file():
        contenders.append(
            Contender("sherpa-onnx float32", folder / "float32", "sherpa", "float32", "model-sherpa.onnx")
        )
        contenders.append(Contender("sherpa-onnx int8", folder / "int8", "sherpa", "float32", "model-sherpa.onnx"))
    return [contender for contender in contenders if names is None or contender.name in names]


def load(contender: Contender, threads: int) -> Transcribe:
    """Load a model; return a function that transcribes waveforms, as one batch where the runtime supports it."""
    if contender.kind == "sherpa":
        return _sherpa(contender.path, threads)
    import torch

    from asr import load_recognizer

    torch.set_num_threads(threads)
    recognizer = load_recognizer(contender.path)
    recognizer.recording_encoder.precision = getattr(torch, contender.precision)

    def transcribe(waveforms: list[np.ndarray]) -> list[str]:
        return [
            transcript.text
            for transcript in recognizer.transcribe(list(map(torch.from_numpy, waveforms)), sample_rate=SAMPLE_RATE)
        ]

    return transcribe


def _sherpa(folder: Path, threads: int) -> Transcribe:
    import sherpa_onnx

    features = json.loads((folder / "config.json").read_text(encoding="utf-8"))["features"]["name"]
    recognizer = getattr(sherpa_onnx.OfflineRecognizer, LAYOUTS[features].ctc_reader)(
        model=str(folder / "model-sherpa.onnx"), tokens=str(folder / "tokens.txt"), num_threads=threads
    )

    def transcribe(waveforms: list[np.ndarray]) -> list[str]:
        streams = [recognizer.create_stream() for _ in waveforms]
        for stream, waveform in zip(streams, waveforms, strict=True):
            stream.accept_waveform(SAMPLE_RATE, waveform)
        recognizer.decode_streams(streams)
        return [str(stream.result.text) for stream in streams]

    return transcribe


def measure_speeds(
    contenders: Sequence[Contender], utterances: Sequence[Utterance], options: argparse.Namespace
) -> Results:
    """Time all contenders at all settings; print and return the table of speeds."""
    table = Results("export", SPEED, bars="audio s/s", group_by=("threads", "batch", "seconds"))
    settings = list(itertools.product(options.batch, options.seconds))
    for threads in options.threads:
        setting_turns = in_fresh_process(partial(time_all, contenders, threads, settings, utterances, options.turns))
        for (batch, seconds), turns in setting_turns.items():
            for name, turn in turns.items():
                ratio = turns[TORCH].seconds / turn.seconds if TORCH in turns else None
                table.row(name, threads, batch, seconds, batch * seconds / turn.seconds, ratio)
    return table


def time_all(
    contenders: Sequence[Contender],
    threads: int,
    settings: Sequence[Setting],
    utterances: Sequence[Utterance],
    turns: int,
) -> dict[Setting, dict[str, Turn]]:
    """Time the contenders, which take turns at each setting; return {setting: {contender: median turn}}."""
    transcribers = {contender.name: load(contender, threads) for contender in contenders}
    setting_turns = {}
    for batch, seconds in settings:
        waveforms = joined(utterances, batch, seconds)
        tasks = {name: partial(transcribe, waveforms) for name, transcribe in transcribers.items()}
        setting_turns[batch, seconds] = race(tasks, turns=turns)
    return setting_turns


def joined(utterances: Sequence[Utterance], batch: int, seconds: float) -> list[np.ndarray]:
    """Make `batch` recordings of `seconds` each by concatenating utterances."""
    waveforms = [load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances[:20]]
    audio, size = np.concatenate(waveforms), round(seconds * SAMPLE_RATE)
    return [np.resize(np.roll(audio, -number * size), size) for number in range(batch)]


def measure_totals(contenders: Sequence[Contender], utterances: Sequence[Utterance], turns: int) -> Results:
    """Measure size, memory, WER and start-up of all contenders; print and return the table of totals."""
    table, expected = Results("export_totals", TOTALS, bars="MB on disk"), None
    recording = str(Path(utterances[0].audio_filepath).resolve())
    cold_starts = {contender.name: partial(cold_start, contender, recording) for contender in contenders}
    cold = race(cold_starts, turns=turns)
    normalize = get_normalizer("basic")
    for contender in contenders:
        texts, peak = in_fresh_process(partial(transcribe_all, contender, utterances))
        expected = expected or texts
        counts = [
            count_errors(normalize(utterance.text), normalize(text))
            for utterance, text in zip(utterances, texts, strict=True)
        ]
        errors, words = (
            np.array([[getattr(count, name)] for count in counts], dtype=np.float64)
            for name in ("errors", "reference_length")
        )
        [ends] = intervals(errors, words)
        num_differing = sum(text != reference for text, reference in zip(texts, expected, strict=True))
        size, wer = (contender.path / contender.file).stat().st_size / 1e6, 100 * errors.sum() / words.sum()
        first = cold[contender.name].seconds
        table.row(contender.name, size, peak, wer, interval(ends), errors.sum(), num_differing, first)
    return table


def transcribe_all(contender: Contender, utterances: Sequence[Utterance]) -> tuple[list[str], float]:
    """Return each utterance's text, recognised alone on one thread, and the peak memory in MB after MEMORY_SECONDS."""
    transcribe = load(contender, 1)
    transcribe(joined(utterances, 1, MEMORY_SECONDS))
    peak = peak_memory() / 1e6
    waveforms = (load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances)
    return [transcribe([waveform])[0] for waveform in waveforms], peak


def cold_start(contender: Contender, recording: str) -> None:
    """Run a program that prints the text of a recording, in a new process."""
    if contender.kind == "torch":
        command = ["-m", "asr.transcribe", str(contender.path.resolve()), recording]
        _python([*command, "--precision", contender.precision])
    else:
        program = contender.path / "readme_program.py"  # a file, because it finds the model's files by its own path
        program.write_text(readme_program(contender), encoding="utf-8")
        _python([program.name, recording], contender.path)


def readme_program(contender: Contender) -> str:
    """Return a contender's Python program from the README.md of its exported folder."""
    readme = (contender.path / "README.md").read_text(encoding="utf-8")
    programs: list[str] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    return programs[1 if contender.kind == "sherpa" else 0]


def cold_parts(contenders: Sequence[Contender], recording: str) -> Mapping[str, Callable[[], object]]:
    """Return programs without torch that stop at successive stages of the start-up."""
    parts = {"empty program": partial(_python, ["-c", ""]), IMPORTS: partial(_python, ["-c", IMPORTS])}
    for contender in contenders:
        if contender.kind == "onnx":
            code = f"{IMPORTS}; onnxruntime.InferenceSession('model-waveform.onnx')"
            parts[f"{contender.name}, load the model"] = partial(_python, ["-c", code], contender.path)
            parts[f"{contender.name}, to the first text"] = partial(cold_start, contender, recording)
    return parts


def _python(arguments: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE)


if __name__ == "__main__":
    run_command(main)
