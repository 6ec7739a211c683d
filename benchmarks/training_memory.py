"""python -m benchmarks.training_memory: memory of training steps, beside the forecast of asr.doctor.

Each value is measured in a process of its own: the peak of resident memory during three optimizer steps with AdamW,
minus the memory of the process before it made the model. "kept": as asr.train runs on a CPU, where the allocator keeps
freed memory, which is faster and fragments. "returned": with the environment variable MALLOC_MMAP_THRESHOLD_ of glibc,
which makes it return each large block to Linux.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from unittest.mock import patch

from asr.apps.doctor.memory import FULL, LORA, METHODS
from asr.apps.doctor.trial import set_modes, step_bytes
from asr.base.settings.conf import default_settings
from asr.base.system.processes import THRESHOLD, keep_memory, use_huge_pages
from asr.base.text.normalize import basic
from asr.core.build import build_features, build_optimizer, build_tokenizer, component, optimizer_bytes
from asr.core.cli.command import run_command
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from asr.errors import InputError
from benchmarks import nets, results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.results import Results, fixed

STEPS = 3
SETTINGS = {"optimizer": default_settings("optimizer", "adamw")}
GIGABYTE = 1e9
NUMBERS = ("weights GB", "forecast GB", "returned GB", "returned / forecast", "kept GB", "kept / forecast")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per way of training and length of the utterances."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_memory", description=__doc__)
    parser.add_argument("--encoder", default="fast_conformer_l", help="file of conf/encoder (default: %(default)s)")
    parser.add_argument(
        "--batches", nargs="+", default=["8x2", "8x5", "8x10"], metavar="NxS", help="N utterances of at most S seconds"
    )
    results.add_options(parser)
    parser.set_defaults(turns=1)
    options = parser.parse_args(arguments)
    facts = about(options)
    table = Results(
        "training_memory",
        {"trained": str, "batch": str} | dict.fromkeys(NUMBERS, fixed(2)),
        bars="returned GB",
        group_by=("batch",),
    )
    for batch in options.batches:
        count, seconds = batch.split("x")
        for way in (FULL, LORA):
            settings = options.encoder, way, int(count), float(seconds)
            expected, weights = in_fresh_process(forecast, *settings)
            kept = in_fresh_process(measure, *settings)
            with patch.dict(os.environ, {THRESHOLD: str(2**17)}):  # glibc reads it when a process starts
                returned = in_fresh_process(measure, *settings)
            ratios = returned / expected, kept / expected
            weights, expected, returned, kept = (size / GIGABYTE for size in (weights, expected, returned, kept))
            table.row(way, batch, weights, expected, returned, ratios[0], kept, ratios[1])
    table.save(options.output_dir, facts)
    return 0


def forecast(encoder: str, way: str, count: int, seconds: float) -> tuple[float, float]:
    """Return the bytes of tensors that `asr.doctor` expects in a step, and the bytes of the model's weights."""
    model = make_model(encoder, way)
    state = optimizer_bytes(SETTINGS, model, model.depths)
    expected = step_bytes(model, make_batch(count, seconds), nullcontext, False, state)
    return expected, sum(weight.nbytes for weight in model.parameters())


def measure(encoder: str, way: str, count: int, seconds: float) -> float:
    """Return the growth of resident memory, in bytes, while a model is made and takes STEPS steps."""
    keep_memory()  # as asr.train does
    use_huge_pages()
    take_steps(make_model("conformer_xs", FULL), make_batch(1, 1.0))  # loads the libraries that a step needs
    before = peak_memory_reset()
    take_steps(make_model(encoder, way), make_batch(count, seconds))
    return peak_memory() - before


def take_steps(model: Model, batch: Batch) -> None:
    """Train for STEPS optimizer steps on one batch."""
    optimizer = build_optimizer(SETTINGS, model, model.depths)
    set_modes(model)
    for _ in range(STEPS):
        encoded = model.encode(batch)
        model.head.losses(encoded, batch.targets)["loss"].sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def make_model(encoder_name: str, way: str) -> Model:
    """Make a model with random weights and a CTC head of 1,024 tokens, and prepare it for a way of training."""
    tokenizer = build_tokenizer({"tokenizer": default_settings("tokenizer", "char")})  # not used by a training step
    features = build_features({"features": default_settings("features", "fbank")})
    encoder = component("encoder", nets.encoder_config(encoder_name))(features.dim)
    head = component("head", default_settings("head", "ctc"))(encoder.output_dim, {}, nets.VOCAB_SIZE)
    model = METHODS[way](Model(basic, tokenizer, features, encoder, head))
    if model is None:
        raise InputError(f"--encoder must have linear layers for an adapter; {encoder_name} has none.")
    return model


def make_batch(count: int, seconds: float) -> Batch:
    """Make a batch of noise and random tokens."""
    batch = nets.make_batch(count, seconds)
    num_frames = tuple(batch.lengths.tolist())
    return Batch(batch.features, batch.lengths, batch.targets, utterances=(), rejected=(), num_frames=num_frames)


if __name__ == "__main__":
    run_command(main)
