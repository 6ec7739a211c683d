"""Common part of the benchmarks of neural networks: command-line options, and timing of contenders on a batch."""

import argparse
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asr.errors import InputError
from benchmarks import results
from benchmarks.machine import TURNS, about, measure, synchronizer
from benchmarks.nets import (
    ATTENTIONS,
    BLOCK_FRAMES_PER_SECOND,
    FRAMES_PER_SECOND,
    MIN_LENGTH_FRACTION,
    OURS,
    PEERS,
    RELATIVE,
    Batch,
    Net,
    encoder_config,
    encoder_of_size,
    entries,
    installed,
    make_batch,
    make_net,
)
from benchmarks.race import Contender, enter, race
from benchmarks.results import Columns, Results, fixed, share

MAX_UTTERANCE_SECONDS = 14.0  # longest utterance of a batch that is specified by its padded seconds

FAILURES = (
    Exception,
)  # a contender that raises one is left out: no fault of one may end the measurement of the others

Prepare = Callable[[Net, Batch], object]


class Work(NamedTuple):
    """The operation that a benchmark of networks times.

    Args:
        name: name of the benchmark.
        make_operation: makes the timed operation from a network and a batch.
        backward: whether the operation has a backward pass; used to count floating-point operations.
        variants: maps a contender to its variants: {suffix of the name: function that prepares the network}.
    """

    name: str
    make_operation: Callable[[Net, Batch], Contender]
    backward: bool
    variants: Callable[[str], Mapping[str, Prepare]]


class NetStatistics(NamedTuple):
    """Number of parameters, floating-point operations per run, and peak GPU memory in GB (None on a CPU)."""

    parameters: int
    flops: float
    peak: float | None


def add_options(parser: argparse.ArgumentParser, batches: list[str]) -> None:
    """Add the options that select networks, batches and the device."""
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16 uses autocast"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["s", "m"],
        help="sizes of conf/encoder/conformer_*.yaml, or names of encoders in conf/encoder, such as fast_conformer_l",
    )
    min_length = f"{MIN_LENGTH_FRACTION:.0%}".replace("%", " %%")
    parser.add_argument(
        "--batches",
        nargs="*",
        type=_batch,
        default=[_batch(batch) for batch in batches],
        metavar="NxS",
        help=f"N utterances, lengths evenly spaced from {min_length} of S to S seconds (default: {' '.join(batches)})",
    )
    parser.add_argument(
        "--batch-seconds",
        nargs="*",
        type=float,
        default=[],
        metavar="S",
        help=f"batches of S / {MAX_UTTERANCE_SECONDS:.0f} utterances of up to {MAX_UTTERANCE_SECONDS:.0f} s",
    )
    parser.add_argument("--contenders", nargs="+", choices=(OURS, *PEERS), default=[OURS, *PEERS], metavar="NAME")
    parser.add_argument(
        "--attentions",
        nargs="*",
        choices=ATTENTIONS,
        default=["rotary_attention"],
        metavar="NAME",
        help="kinds of attention with which our encoder is also timed (default: rotary_attention)",
    )
    parser.add_argument("--without-front-end", action="store_true", help="time the blocks alone, on inputs (B, T', D)")
    parser.add_argument("--compile", action="store_true", help="also time each contender with compiled blocks")
    results.add_options(parser)


def contest(work: Work, options: argparse.Namespace) -> None:
    """Print and save one row per size, batch and contender; the contenders of a batch take turns."""
    options.contenders = installed(options.contenders)
    machine = measure(options.device, getattr(torch, options.precision), TURNS if options.turns > 1 else 1)
    facts = about(options, machine)
    on_card = options.device.startswith("cuda")
    time_heading, gpu_columns = ("ms", {"peak GB": fixed(1)}) if on_card else ("CPU ms", {})
    columns: Columns = {
        "size": str,
        "batch": str,
        "contender": str,
        "ms": fixed(0),
        time_heading: fixed(0),
        "x peer": fixed(2),
    }
    columns |= {
        "of matmul": share,
        "audio hours/s": fixed(4),
        "parameters, M": fixed(2),
        "GFLOP": fixed(0),
        **gpu_columns,
    }
    suffix = "" if options.precision == "float32" else f"_{options.precision}"
    table = Results(work.name + suffix, columns, bars=time_heading, group_by=("size", "batch"))
    by_seconds = [
        (max(1, round(seconds / MAX_UTTERANCE_SECONDS)), MAX_UTTERANCE_SECONDS) for seconds in options.batch_seconds
    ]
    for size, (count, max_seconds) in itertools.product(options.sizes, [*options.batches, *by_seconds]):
        dim = encoder_config(encoder_of_size(size))["dim"] if options.without_front_end else None
        batch = Batch(*(part.to(options.device) for part in make_batch(count, max_seconds, blocks_dim=dim)))
        statistics: dict[str, NetStatistics] = {}
        contenders = enter(_makers(work, options, size, batch, statistics), expected=FAILURES)
        if OURS in options.contenders and OURS not in contenders:
            raise InputError(
                f"asr's network must run; size {size}, batch {count}x{max_seconds:g} failed as printed above."
            )
        turns = race(contenders, turns=options.turns, warm_up=0, synchronize=synchronizer(options.device))
        durations = {name: turn.seconds if on_card else turn.cpu_seconds for name, turn in turns.items()}
        peer = min((durations[name] for name in RELATIVE if name in durations), default=None)
        frames_per_second = BLOCK_FRAMES_PER_SECOND if options.without_front_end else FRAMES_PER_SECOND
        audio_hours = float(batch.lengths.sum()) / frames_per_second / 3600
        for name, seconds in durations.items():
            net = statistics[name]
            values = {"size": size, "batch": f"{count}x{max_seconds:g}", "contender": name}
            values |= {
                "ms": 1000 * turns[name].seconds,
                time_heading: 1000 * seconds,
                "x peer": peer and peer / seconds,
            }
            values |= {"of matmul": net.flops / seconds / machine.matmul, "audio hours/s": audio_hours / seconds}
            values |= {"parameters, M": net.parameters / 1e6, "GFLOP": net.flops / 1e9, "peak GB": net.peak}
            table.row(*(values[heading] for heading in columns))
        table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)


def _makers(
    work: Work, options: argparse.Namespace, size: str, batch: Batch, statistics: dict[str, NetStatistics]
) -> dict[str, Callable[[], Contender]]:
    """Return a maker of each contender and variant.

    A maker prepares the operation, runs it twice as a warm-up, and stores its figures in `statistics`.
    """

    def make(contender: str, encoder_name: str, row_name: str, prepare: Prepare) -> Contender:
        torch.manual_seed(0)
        initial_bytes = _allocated(options.device)
        net = make_net(contender, encoder_name, with_front_end=not options.without_front_end).to(options.device)
        flops = count_flops(net, batch.features, batch.lengths, backward=work.backward)
        prepare(net, batch)
        run = work.make_operation(net, batch)
        run()  # compiles code, selects algorithms, and fills the allocator's cache
        peak = _peak(run, options.device)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        statistics[row_name] = NetStatistics(parameters, flops, peak and (peak - initial_bytes) / 1e9)
        return run

    return {
        (row_name := name + suffix): functools.partial(make, contender, encoder_name, row_name, prepare)
        for name, (contender, encoder_name) in entries(options.contenders, size, options.attentions).items()
        for suffix, prepare in work.variants(contender).items()
    }


def compile_blocks(net: Net, batch: Batch) -> None:
    """Compile each block for the batch's fixed shape; blocks of equal structure share the compiled code."""
    for block in net.blocks:
        block.compile(dynamic=False)


def count_flops(net: nn.Module, *inputs: Tensor, backward: bool) -> float:
    """Count the floating-point operations of a network's matrix products and convolutions.

    A multiplication and an addition count as two. A backward pass counts as twice the forward pass, because torch's
    counter treats the weight gradient of a depthwise convolution as that of a full convolution.
    """
    net.eval()
    # FlopCounterMode lacks addmm_
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _product})
    with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):  # FlopCounterMode counts plain products only
        net(*inputs)
    return float(counter.get_total_flops()) * (3 if backward else 1)


def _product(_: torch.Size, left: torch.Size, right: torch.Size, out_shape: torch.Size | None = None) -> int:
    return 2 * left[0] * left[1] * right[1]


def _allocated(device: str) -> float:
    return float(torch.cuda.memory_allocated()) if device.startswith("cuda") else 0.0


def _peak(run: Contender, device: str) -> float | None:
    """Return the peak of allocated GPU memory in bytes while a contender runs; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def _batch(text: str) -> tuple[int, float]:
    count, seconds = text.split("x")
    return int(count), float(seconds)
