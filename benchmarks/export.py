"""python -m benchmarks.export MODEL MANIFEST: a model by torch, by ONNX Runtime and by sherpa-onnx, side by side.

Seconds of audio a second (--seconds, --batch, --threads), the first text from a cold process, peak memory, size on
disk; and the WER of each on the manifest, with how many texts are not those of torch in float32. Each contender runs
in a process of its own. sherpa-onnx decodes one recording after another, and computes features of its own.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from asr.audio.load import load_waveform
from asr.cli.command import run_command
from asr.data.manifest import Utterance, read_manifest
from asr.evaluation.word_errors import count_errors, total
from asr.text.normalize import get_normalizer
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory
from benchmarks.results import Results, fixed

SAMPLE_RATE = 16000
Transcribe = Callable[[list[np.ndarray]], list[str]]
SPEED = {
    "contender": str,
    "threads": fixed(0),
    "batch": fixed(0),
    "seconds": fixed(0),
    "seconds of audio a second": fixed(1),
    "peak MB": fixed(0),
}
TOTALS = {
    "contender": str,
    "MB on disk": fixed(1),
    "WER %": fixed(2),
    "errors": fixed(0),
    "other texts": fixed(0),
    "first text after s": fixed(2),
}


class Contender(NamedTuple):
    """What is timed.

    Args:
        name: in the tables.
        path: of the model: a bundle, or an exported folder.
        kind: "asr" or "sherpa".
        precision: of torch.
        file: whose size counts.
    """

    name: str
    path: Path
    kind: str
    precision: str
    file: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model, print a table of speeds and one of the rest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    model, manifest = Path("runs/demo/bundle"), "data/mini/test.jsonl"
    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, default=model, help=f"a bundle ({model})")
    about_wer = f"JSONL, to measure the WER on ({manifest})"
    parser.add_argument("manifest", metavar="MANIFEST", nargs="?", default=manifest, help=about_wer)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1, 10, 30], metavar="S", help="of audio")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="N", help="recordings at once")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="those alone")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    facts = about(given)
    utterances = read_manifest(given.manifest)
    with tempfile.TemporaryDirectory() as folder:
        contenders = make_contenders(given.model, Path(folder), given.contenders)
        speed = Results("export", SPEED, bars="seconds of audio a second", within=("threads", "batch", "seconds"))
        for threads, batch, seconds in itertools.product(given.threads, given.batch, given.seconds):
            for contender in contenders:
                timed = partial(time_transcribing, contender, threads, batch, seconds, utterances, given.turns)
                rate, peak = in_fresh_process(timed)
                speed.row(contender.name, threads, batch, seconds, rate, peak)
        speed.keep(given.output_dir, facts)
        totals = Results("export_totals", TOTALS, bars="MB on disk")
        expected: list[str] | None = None
        for contender in contenders:
            texts = in_fresh_process(partial(transcribe_all, contender, utterances))
            expected = expected or texts
            rows = list(zip(utterances, texts, strict=True))
            normalize = get_normalizer("basic")
            errors = total(count_errors(normalize(utterance.text), normalize(text)) for utterance, text in rows)
            others = sum(text != other for text, other in zip(texts, expected, strict=True))
            size = (contender.path / contender.file).stat().st_size / 1e6
            cold = median(cold_start(contender, utterances[0]) for _ in range(given.turns))
            totals.row(contender.name, size, 100 * errors.rate, errors.errors, others, cold)
        totals.keep(given.output_dir, facts)
    return 0


def make_contenders(model: Path, folder: Path, names: Sequence[str] | None) -> list[Contender]:
    """Export the model as it is and with 8-bit weights; list who takes part."""
    for name, options in (("float32", []), ("int8", ["--quantize", "int8"])):
        command = [sys.executable, "-m", "asr.export", str(model), "-o", str(folder / name), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    there = [
        Contender("torch float32", model, "asr", "float32", "weights.safetensors"),
        Contender("torch bfloat16", model, "asr", "bfloat16", "weights.safetensors"),
        Contender("ONNX float32", folder / "float32", "asr", "float32", "model.onnx"),
        Contender("ONNX int8", folder / "int8", "asr", "float32", "model.onnx"),
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
    recognizer.encoder.precision = getattr(torch, contender.precision)

    def transcribe(waveforms: list[np.ndarray]) -> list[str]:
        return [transcript.text for transcript in recognizer.transcribe(list(map(torch.from_numpy, waveforms)))]

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


def time_transcribing(
    contender: Contender, threads: int, batch: int, seconds: float, utterances: Sequence[Utterance], turns: int
) -> tuple[float, float]:
    """Seconds of audio a second, and the peak of memory in MB; of recordings joined to one length."""
    audio = np.concatenate(
        [load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances[:20]]
    )
    size = round(seconds * SAMPLE_RATE)
    waveforms = [np.resize(np.roll(audio, -number * size), size) for number in range(batch)]
    transcribe = opened(contender, threads)
    transcribe(waveforms)
    taken = []
    for _ in range(turns):
        start = time.perf_counter()
        transcribe(waveforms)
        taken.append(time.perf_counter() - start)
    return batch * seconds / median(taken), peak_memory() / 1e6


def transcribe_all(contender: Contender, utterances: Sequence[Utterance]) -> list[str]:
    """Each utterance alone, on one thread."""
    transcribe = opened(contender, 1)
    waveforms = (load_waveform(utterance.audio_filepath, SAMPLE_RATE).numpy() for utterance in utterances)
    return [transcribe([waveform])[0] for waveform in waveforms]


def cold_start(contender: Contender, utterance: Utterance) -> float:
    """Seconds from the start of a process to the text of a recording."""
    if contender.kind == "sherpa":
        code = (
            "import sherpa_onnx, soundfile\n"
            f"model = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(model={str(contender.path / 'model-sherpa.onnx')!r}, "
            f"tokens={str(contender.path / 'tokens.txt')!r})\nstream = model.create_stream()\n"
            f"waveform, rate = soundfile.read({utterance.audio_filepath!r}, dtype='float32')\n"
            "stream.accept_waveform(rate, waveform)\nmodel.decode_stream(stream)\nprint(stream.result.text)\n"
        )
        command = [sys.executable, "-c", code]
    else:
        command = [sys.executable, "-m", "asr.transcribe", str(contender.path), utterance.audio_filepath]
        command += ["--precision", contender.precision]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - start


if __name__ == "__main__":
    run_command(main)
