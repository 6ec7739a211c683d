"""python -m benchmarks.gpu.recognition: seconds of audio recognised a second, by batch and decoder, from files.

Without --models the weights are random: the net takes the time of a trained one, a beam takes longer, and the texts
mean nothing.
"""

import argparse
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from asr.build import build_features, build_recognizer, build_tokenizer
from asr.checkpoint.load import load_recognizer
from asr.cli.command import run_command
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.recognition.inference import INFERENCE
from asr.recognition.recognizer import Recognizer
from benchmarks import results
from benchmarks.features import composed
from benchmarks.loading import write_noise
from benchmarks.machine import about, measure, synchronizer
from benchmarks.model import read_utterances
from benchmarks.race import race
from benchmarks.results import Results, fixed

NAME = "gpu_recognition"
DECODERS = {  # of random weights: the head of each decoder
    "greedy": "ctc",
    "beam": "ctc",
    "transducer_greedy": "transducer",
    "transducer_beam": "transducer",
    "tdt_greedy": "tdt",
}
RANDOM = "random weights"
TEXTS = ["the quick brown fox jumps over a lazy dog"]  # from which a tokenizer of letters is fitted


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each model, decoder and size of the batches."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.recognition", description=__doc__)
    parser.add_argument("--models", nargs="*", default=[], metavar="MODEL", help="run folders or bundles")
    parser.add_argument("--audio", nargs="*", default=[], metavar="AUDIO", help="manifests, files or folders (noise)")
    parser.add_argument("--encoder", default="conformer_s", help=f"of {RANDOM} (conformer_s)")
    parser.add_argument("--decoders", nargs="+", choices=[*DECODERS], default=[*DECODERS], metavar="NAME")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16", help="(bfloat16)")
    parser.add_argument("--batch-seconds", nargs="+", type=float, default=[100, 400, 1600], metavar="S")
    parser.add_argument("--utterances", type=int, default=500, metavar="N", help="of noise, 2 to 17 s each (500)")
    parser.add_argument("--num-workers", type=int, default=8, metavar="N", help="processes that read audio (8)")
    results.add_options(parser)
    parser.set_defaults(turns=2)
    given = parser.parse_args(arguments)
    facts = about(given, measure(given.device, getattr(torch, given.precision)) if given.device != "cpu" else None)
    columns = {"model": str, "decoder": str, "batch s": str, "audio s": fixed(0), "x real time": fixed(0)}
    table = Results(NAME, columns | {"peak GB": fixed(2), "texts": str}, bars="x real time", within=("model",))
    with tempfile.TemporaryDirectory() as folder:
        if not given.audio:
            write_noise(Path(folder), given.utterances)
        utterances = list(read_utterances(given.audio or [folder]))
        for model, decoder, make in entrants(given.models, given.encoder, given.decoders):
            try:
                recognizer = make().to(given.device)
            except InputError as error:  # a head without what the decoder needs
                print(f"{model}, {decoder}: left out: {error}", flush=True)
                continue
            recognizer.recording_encoder.precision = getattr(torch, given.precision)
            compare(table, model, decoder, recognizer, utterances, given)
    table.keep(given.output_dir, facts)
    return 0


def entrants(
    models: Sequence[str], encoder: str, decoders: Sequence[str]
) -> Iterator[tuple[str, str, Callable[[], Recognizer]]]:
    """Yield model, decoder, and what makes the recogniser of both."""
    for model in models:
        for decoder in decoders:
            yield model, decoder, functools.partial(load_recognizer, model, decode={"name": decoder})
    if not models:
        for decoder in decoders:
            overrides = f"encoder={encoder}", f"head={DECODERS[decoder]}", f"decode={decoder}"
            yield RANDOM, decoder, functools.partial(random_recognizer, *overrides)


def random_recognizer(*overrides: str) -> Recognizer:
    """Make a recogniser of fresh weights."""
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
    given: argparse.Namespace,
) -> None:
    """Add a row for each size of the batches; they take turns."""
    audio, on_card = sum(utterance.duration for utterance in utterances), given.device.startswith("cuda")
    texts: dict[str, int] = {}
    peaks: dict[str, float | None] = {}

    def recognize(batch_seconds: float) -> None:
        if on_card:
            torch.cuda.reset_peak_memory_stats()
        batches = replace(INFERENCE.batches, batch_seconds=batch_seconds, max_utterances=1024)
        how = replace(INFERENCE, batches=batches, num_workers=given.num_workers)
        recognised = [result for result in recognizer.recognize(utterances, how) if isinstance(result, tuple)]
        texts[f"{batch_seconds:g}"] = len(recognised)
        peaks[f"{batch_seconds:g}"] = torch.cuda.max_memory_allocated() / 1e9 if on_card else None

    sizes = {f"{size:g}": functools.partial(recognize, size) for size in given.batch_seconds}
    for size, turn in race(sizes, turns=given.turns, warm_up=1, synchronize=synchronizer(given.device)).items():
        count = f"{texts[size]} of {len(utterances)}"
        table.row(model, decoder, size, audio, audio / turn.seconds, peaks[size], count)


if __name__ == "__main__":
    run_command(main)
