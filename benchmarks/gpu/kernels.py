"""python -m benchmarks.gpu.kernels: find the fused attention kernels that each encoder runs, with the profiler."""

import argparse
import re
from collections.abc import Iterator, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from asr.base.settings.conf import CONF
from asr.core.build import component
from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about, measure, synchronizer
from benchmarks.nets import ATTENTIONS, NUM_MEL_BINS, encoder_config, make_batch
from benchmarks.results import Results

NAME = "gpu_kernels"
ENCODERS = sorted(path.stem for path in (CONF / "encoder").glob("*.yaml"))
ENCODER_OF_ALL_ATTENTIONS = "conformer_s"  # runs with each attention of conf/encoder/block/attention
OPERATION = re.compile(r"aten::_scaled_dot_product_(.*attention\w*)$")
NONE = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per encoder, precision and pass."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.kernels", description=__doc__)
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument(
        "--encoders", nargs="+", default=ENCODERS, metavar="NAME", help="names in conf/encoder (default: all)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="length of the longest of three utterances (default: 10)",
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    facts = about(options, measure(options.device) if options.device != "cpu" else None)
    columns = dict.fromkeys(["encoder", "head dim", "precision", "pass", "kernels", "finite"], str)
    table = Results(NAME, columns | {"operations": lambda value: f"{value}"}, bars="operations")
    for encoder in [*options.encoders, *_attention_variants(options.encoders)]:
        config = encoder_config(f"{encoder} ++encoder.num_layers=1")
        head_dim = config["dim"] // config["block"]["num_heads"] if "block" in config else None
        for precision in ("float32", "bfloat16"):
            for training in (True, False):
                kernels, finite = run(config, options.device, precision, options.seconds, training)
                pass_name = "training" if training else "inference"
                names = " ".join(sorted(set(kernels))) or NONE
                table.row(encoder, str(head_dim or "-"), precision, pass_name, names, finite, len(kernels))
        table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)
    return 0


def _attention_variants(encoders: Sequence[str]) -> Iterator[str]:
    if ENCODER_OF_ALL_ATTENTIONS in encoders:
        yield from (f"{ENCODER_OF_ALL_ATTENTIONS} encoder/block/attention={name}" for name in ATTENTIONS)


def run(
    config: dict[str, object], device: str, precision: str, seconds: float, training: bool
) -> tuple[list[str], str]:
    """Run one layer of an encoder.

    Returns:
        The names of its fused attention operations, and "yes" if its output and gradients are finite, else "no".
    """
    torch.manual_seed(0)
    encoder = component("encoder", config)(NUM_MEL_BINS).to(device).train(training)
    features, lengths, *_ = (part.to(device) for part in make_batch(3, seconds))
    dtype = getattr(torch, precision)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    with profile(activities=activities) as profiler:
        autocast = torch.autocast(device.partition(":")[0], dtype, enabled=dtype != torch.float32)
        with torch.set_grad_enabled(training), autocast:
            out = encoder(features, lengths).out
        if training:
            out.float().square().mean().backward()
        synchronizer(device)()
    operations = [match[1] for event in profiler.events() if (match := OPERATION.match(event.name))]
    gradients = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    finite = all(bool(part.isfinite().all()) for part in [out, *gradients])
    return operations, "yes" if finite else "no"


if __name__ == "__main__":
    run_command(main)
