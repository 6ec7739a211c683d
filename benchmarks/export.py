"""python -m benchmarks.export MODEL MANIFEST...: a model by torch, by ONNX Runtime and by sherpa-onnx, side by side.

Seconds of audio a second (--seconds, --batch, --threads), where all contenders take turns in one process; then, each in
a process of its own, the peak of memory, and the WER on the manifests together, with how many texts are not those of
torch in float32; size on disk; and the first text from a cold process: by asr.transcribe for torch, by the programs of
the written README.md, which need no torch, for the others. What these take is shown in parts, too. sherpa-onnx computes
features of its own.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asr.audio.load import load_waveform
from asr.cli.command import run_command
from asr.data.manifest import Utterance, read_manifest
from asr.evaluation.bootstrap import intervals
from asr.evaluation.word_errors import count_errors
from asr.text.normalize import get_normalizer
from asr.text.numbers import interval
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.race import Turn, race
from benchmarks.results import Results, fixed

SAMPLE_RATE = 16000
MEMORY_SECONDS = 30  # of the recording behind which the peak of memory is read
Transcribe = Callable[[list[np.ndarray]], list[str]]
Setting = tuple[int, float]  # recordings at once, and how long they are
SPEED = {
    "contender": str,
    "threads": fixed(0),
    "batch": fixed(0),
    "seconds": fixed(0),
    "seconds of audio a second": fixed(1),
    "x torch float32": fixed(2),
}
TOTALS = {
    "contender": str,
    "MB on disk": fixed(1),
    "peak MB": fixed(0),
    "WER %": fixed(2),
    "95 % interval": str,
    "errors": fixed(0),
    "other texts": fixed(0),
    "first text after s": fixed(2),
}
COLD = {"to what": str, "seconds": fixed(2), "CPU seconds": fixed(2)}
IMPORTS = "import numpy, onnxruntime, soundfile"
TORCH = "torch float32"  # what the others are compared with


class Contender(NamedTuple):
    """What is timed.

    Args:
        name: in the tables.
        path: of the model: a bundle, or an exported folder.
        kind: "torch", "onnx" or "sherpa".
        precision: of torch.
        file: whose size counts.
    """

    name: str
    path: Path
    kind: str
    precision: str
    file: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model, print a table of speeds, one of the rest, and one of what a cold start is made of."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    model, manifest = Path("runs/mini/bundle"), "data/mini/test.jsonl"
    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, default=model, help=f"a bundle ({model})")
    about_wer = f"JSONL, to measure the WER on ({manifest})"
    parser.add_argument("manifests", metavar="MANIFEST", nargs="*", default=[manifest], help=about_wer)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1, 10, 30], metavar="S", help="of audio")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="N", help="recordings at once")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="those alone")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    given = parser.parse_args(arguments)
    facts = about(given)
    utterances = [utterance for path in given.manifests for utterance in read_manifest(path)]
    with tempfile.TemporaryDirectory() as folder:
        contenders = make_contenders(given.model, Path(folder), given.contenders)
        keep_speeds(contenders, utterances, given).keep(given.output_dir, facts)
        keep_totals(contenders, utterances, given.turns).keep(given.output_dir, facts)
        cold, recording = (
            Results("export_cold", COLD, bars="seconds"),
            str(Path(utterances[0].audio_filepath).resolve()),
        )
        for name, turn in race(cold_parts(contenders, recording), turns=given.turns).items():
            cold.row(name, *turn)
        cold.keep(given.output_dir, facts)
    return 0


def make_contenders(model: Path, folder: Path, names: Sequence[str] | None) -> list[Contender]:
    """Export the model as it is and with 8-bit weights; list who takes part."""
    for name, options in (("float32", []), ("int8", ["--quantize", "int8"])):
        command = [sys.executable, "-m", "asr.export", str(model), "-o", str(folder / name), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    there = [
        Contender(TORCH, model, "torch", "float32", "weights.safetensors"),
        Contender("torch bfloat16", model, "torch", "bfloat16", "weights.safetensors"),
        Contender("ONNX float32", folder / "float32", "onnx", "float32", "model.onnx"),
        Contender("ONNX int8", folder / "int8", "onnx", "float32", "model.onnx"),
    ]
    if (folder / "float32" / "model-sherpa.onnx").is_file():
        there.append(Contender("sherpa-onnx float32", folder / "float32", "sherpa", "float32", "model-sherpa.onnx"))
        there.append(Contender("sherpa-onnx int8", folder / "int8", "sherpa", "float32", "model-sherpa.onnx"))
    return [contender for contender in there if names is None or contender.name in names]


def opened(contender: Contender, threads: int) -> Transcribe:
    """Open a model: what takes waveforms to texts, all of them in a batch if it can."""
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

    recognizer = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(
        model=str(folder / "model-sherpa.onnx"), tokens=str(folder / "tokens.txt"), num_threads=threads
    )

    def transcribe(waveforms: list[np.ndarray]) -> list[str]:
        streams = [recognizer.create_stream() for _ in waveforms]
        for stream, waveform in zip(streams, waveforms, strict=True):
            stream.accept_waveform(SAMPLE_RATE, waveform)
        recognizer.decode_streams(streams)
        return [str(stream.result.text) for stream in streams]

    return transcribe


def keep_speeds(contenders: Sequence[Contender], utterances: Sequence[Utterance], given: argparse.Namespace) -> Results:
    """Print the table of speeds."""
    table = Results("export", SPEED, bars="seconds of audio a second", within=("threads", "batch", "seconds"))
    settings = list(itertools.product(given.batch, given.seconds))
    for threads in given.threads:
        taken = in_fresh_process(partial(time_all, contenders, threads, settings, utterances, given.turns))
        for (batch, seconds), turns in taken.items():
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
    """Let contenders take turns at recordings of one length."""
    there = {contender.name: opened(contender, threads) for contender in contenders}
    taken = {}
    for batch, seconds in settings:
        waveforms = joined(utterances, batch, seconds)
        tasks = {name: partial(transcribe, waveforms) for name, transcribe in there.items()}
        taken[batch, seconds] = race(tasks, turns=turns)
    return taken


def joined(utterances: Sequence[Utterance], batch: int, seconds: float) -> list[np.ndarray]:
    """Make recordings of one length: utterances one after the other."""
    waveforms = [load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances[:20]]
    audio, size = np.concatenate(waveforms), round(seconds * SAMPLE_RATE)
    return [np.resize(np.roll(audio, -number * size), size) for number in range(batch)]


def keep_totals(contenders: Sequence[Contender], utterances: Sequence[Utterance], turns: int) -> Results:
    """Print the table of the rest."""
    table, expected = Results("export_totals", TOTALS, bars="MB on disk"), None
    recording = str(Path(utterances[0].audio_filepath).resolve())
    cold = race({each.name: partial(cold_start, each, recording) for each in contenders}, turns=turns)
    normalize = get_normalizer("basic")
    for contender in contenders:
        texts, peak = in_fresh_process(partial(transcribe_all, contender, utterances))
        expected = expected or texts
        counts = [
            count_errors(normalize(utterance.text), normalize(text))
            for utterance, text in zip(utterances, texts, strict=True)
        ]
        errors, words = (
            np.array([[getattr(each, name)] for each in counts], dtype=np.float64)
            for name in ("errors", "reference_length")
        )
        [ends] = intervals(errors, words)
        others = sum(text != other for text, other in zip(texts, expected, strict=True))
        size, wer = (contender.path / contender.file).stat().st_size / 1e6, 100 * errors.sum() / words.sum()
        first = cold[contender.name].seconds
        table.row(contender.name, size, peak, wer, interval(ends), errors.sum(), others, first)
    return table


def transcribe_all(contender: Contender, utterances: Sequence[Utterance]) -> tuple[list[str], float]:
    """Each utterance alone, on one thread: its text; and the peak of memory in MB, of one of 30 s."""
    transcribe = opened(contender, 1)
    transcribe(joined(utterances, 1, MEMORY_SECONDS))
    peak = peak_memory() / 1e6
    waveforms = (load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances)
    return [transcribe([waveform])[0] for waveform in waveforms], peak


def cold_start(contender: Contender, recording: str) -> None:
    """Start a process that prints the text of a recording, and wait for its end."""
    if contender.kind == "torch":
        command = ["-m", "asr.transcribe", str(contender.path.resolve()), recording]
        _python([*command, "--precision", contender.precision])
    else:
        _python(["-c", readme_program(contender), recording], contender.path)


def readme_program(contender: Contender) -> str:
    """Take a contender's program from the README.md that was written beside it."""
    readme = (contender.path / "README.md").read_text(encoding="utf-8")
    programs: list[str] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    return programs[1 if contender.kind == "sherpa" else 0]


def cold_parts(contenders: Sequence[Contender], recording: str) -> Mapping[str, Callable[[], object]]:
    """List how far a program without torch is followed, from a cold process."""
    parts = {"nothing": partial(_python, ["-c", ""]), IMPORTS: partial(_python, ["-c", IMPORTS])}
    for contender in contenders:
        if contender.kind == "onnx":
            code = f"{IMPORTS}; onnxruntime.InferenceSession('model-waveform.onnx')"
            parts[f"{contender.name}, opened"] = partial(_python, ["-c", code], contender.path)
            parts[f"{contender.name}, first text"] = partial(cold_start, contender, recording)
    return parts


def _python(arguments: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE)


if __name__ == "__main__":
    run_command(main)
