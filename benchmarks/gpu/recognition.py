"""python -m benchmarks.gpu.recognition: recognition speed from audio files, by batch size and decoder.

Without --models the weights are random: the network takes as long as a trained one, a beam search takes longer, and
the texts are meaningless.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from asr.core.build import build_features, build_recognizer, build_tokenizer
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from benchmarks import results
from benchmarks.features import composed
from benchmarks.loading import write_noise
from benchmarks.machine import about, measure, synchronizer
from benchmarks.model import read_utterances
from benchmarks.race import race
from benchmarks.results import Columns, Results, fixed

NAME = "gpu_recognition"
DECODERS = {  # decoders for random weights, and the heads that each decodes
    "greedy": ("ctc",),
    "beam": ("ctc",),
    "transducer_greedy": ("transducer", "tdt"),
    "transducer_beam": ("transducer",),
}
RANDOM = "random weights"
TEXTS = ["the quick brown fox jumps over a lazy dog"]  # fits a tokenizer of letters


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per model, decoder and batch size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.recognition", description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=[], metavar="MODEL", help="run folders or bundles (default: random weights)"
    )
    parser.add_argument(
        "--audio", nargs="*", default=[], metavar="AUDIO", help="manifests, files or folders (default: noise)"
    )
    parser.add_argument("--encoder", default="conformer_s", help=f"encoder with {RANDOM} (default: conformer_s)")
    parser.add_argument("--decoders", nargs="+", choices=[*DECODERS], default=[*DECODERS], metavar="NAME")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16", help="default: bfloat16")
    parser.add_argument(
        "--batch-seconds",
        nargs="+",
        type=float,
        default=[100, 400, 1600],
        metavar="S",
        help="seconds of audio in a batch",
    )
    parser.add_argument(
        "--utterances", type=int, default=500, metavar="N", help="utterances of noise, 2 to 17 s each (default: 500)"
    )
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="recognise each utterance N times, each time from its file"
    )
    parser.add_argument(
        "--num-workers", type=int, default=8, metavar="N", help="processes that read audio (default: 8)"
    )
    results.add_options(parser)
    parser.set_defaults(turns=2)
    options = parser.parse_args(arguments)
    facts = about(
        options, measure(options.device, getattr(torch, options.precision)) if options.device != "cpu" else None
    )
    columns: Columns = {"model": str, "decoder": str, "batch s": str, "audio s": fixed(0), "x real time": fixed(0)}
    table = Results(NAME, columns | {"peak GB": fixed(2), "texts": str}, bars="x real time", group_by=("model",))
    with tempfile.TemporaryDirectory() as folder:
        if not options.audio:
            write_noise(Path(folder), options.utterances)
        files = list(read_utterances(options.audio or [folder]))
        utterances = [replace(each, id=f"{each.id}, {copy}") for copy in range(options.copies) for each in files]
        for model, decoder, make in recognizer_makers(options.models, options.encoder, options.decoders):
            try:
                recognizer = make().to(options.device)
            except InputError as error:  # the decoder does not support the model's head
                print(f"{model}, {decoder}: left out: {error}", flush=True)
                continue
            recognizer.recording_encoder.precision = getattr(torch, options.precision)
            compare(table, model, decoder, recognizer, utterances, options)
            table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)
    return 0


def recognizer_makers(
    models: Sequence[str], encoder: str, decoders: Sequence[str]
) -> Iterator[tuple[str, str, Callable[[], Recognizer]]]:
    """Yield each model, each decoder, and a function that makes a recogniser with both."""
    for model in models:
        for decoder in decoders:
            yield model, decoder, functools.partial(load_recognizer, model, decode={"name": decoder})
    if not models:
        for decoder in decoders:
            for head in DECODERS[decoder]:
                overrides = f"encoder={encoder}", f"head={head}", f"decode={decoder}"
                yield f"{head}, {RANDOM}", decoder, functools.partial(random_recognizer, *overrides)


def random_recognizer(*overrides: str) -> Recognizer:
    """Make a recogniser with random weights."""
    torch.manual_seed(0)
    config = composed(*overrides)
    tokenizer = build_tokenizer(config)
    tokenizer.fit(TEXTS)
    recognizer = build_recognizer(config, tokenizer, build_features(config))
    recognizer.model.eval()
    return recognizer


def compare(
    table: Results,
    model: str,
    decoder: str,
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    options: argparse.Namespace,
) -> None:
    """Add one row per batch size; the batch sizes take turns."""
    audio, on_card = sum(utterance.duration for utterance in utterances), options.device.startswith("cuda")
    text_counts: dict[str, int] = {}
    peaks: dict[str, float | None] = {}

    def recognize(batch_seconds: float) -> None:
        if on_card:
            torch.cuda.reset_peak_memory_stats()
        batches = replace(INFERENCE.batches, batch_seconds=batch_seconds, max_utterances=1024)
        inference = replace(INFERENCE, batches=batches, num_workers=options.num_workers)
        transcripts = [result for result in recognizer.recognize(utterances, inference) if isinstance(result, tuple)]
        text_counts[f"{batch_seconds:g}"] = len(transcripts)
        peaks[f"{batch_seconds:g}"] = torch.cuda.max_memory_allocated() / 1e9 if on_card else None

    sizes = {f"{size:g}": functools.partial(recognize, size) for size in options.batch_seconds}
    for size, turn in race(sizes, turns=options.turns, warm_up=1, synchronize=synchronizer(options.device)).items():
        count = f"{text_counts[size]} of {len(utterances)}"
        table.row(model, decoder, size, audio, audio / turn.seconds, peaks[size], count)


if __name__ == "__main__":
    run_command(main)
