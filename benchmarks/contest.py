"""What the benchmarks of nets share: their options, and the rows of a batch."""

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
from asr.system.matrix_products import onednn
from benchmarks import results
from benchmarks.machine import TURNS, about, measure, synchronizer
from benchmarks.nets import (
    ATTENTIONS,
    BLOCK_FRAMES_PER_SECOND,
    FRAMES_PER_SECOND,
    OURS,
    PEERS,
    RELATIVE,
    SHORTEST,
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
from benchmarks.results import Results, fixed, share

LONGEST = 14.0  # seconds, of a batch that is named by its padded seconds

Prepare = Callable[[Net, Batch], object]


class Work(NamedTuple):
    """What a benchmark of nets times.

    Args:
        name: of the benchmark.
        ready: makes what is timed of a net and a batch.
        backward: whether a run has a backward pass; for the operations.
        variants: of a contender: what is written behind its name, and what is done to its net first.
    """

    name: str
    ready: Callable[[Net, Batch], Contender]
    backward: bool
    variants: Callable[[str], Mapping[str, Prepare]]


class Entered(NamedTuple):
    """What is known of a contender before it is timed: parameters, operations of a run, a card's peak in GB."""

    parameters: int
    flops: float
    peak: float | None


def add_options(parser: argparse.ArgumentParser, batches: list[str]) -> None:
    """Add what names nets, batches and the device."""
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16 by autocast")
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["s", "m"],
        help="of conf/encoder/conformer_*.yaml (s m), or other names there: fast_conformer_l",
    )
    least = f"{SHORTEST:.0%}".replace("%", " %%")
    parser.add_argument(
        "--batches",
        nargs="*",
        type=_batch,
        default=[_batch(batch) for batch in batches],
        metavar="NxS",
        help=f"N utterances, from {least} of S seconds to all of it in even steps; default: {' '.join(batches)}",
    )
    parser.add_argument(
        "--batch-seconds", nargs="*", type=float, default=[], metavar="S", help=f"such of S / {LONGEST:.0f} utterances"
    )
    parser.add_argument("--contenders", nargs="+", choices=(OURS, *PEERS), default=[OURS, *PEERS], metavar="NAME")
    parser.add_argument(
        "--attentions",
        nargs="*",
        choices=ATTENTIONS,
        default=["rotary_attention"],
        metavar="NAME",
        help="ours with these, too (rotary_attention)",
    )
    parser.add_argument("--without-front-end", action="store_true", help="the blocks alone, from (B, T', D)")
    parser.add_argument("--compile", action="store_true", help="each contender with its blocks compiled, too")
    parser.add_argument(
        "--onednn", action="store_true", help="each contender with float32 matrix products by oneDNN, too"
    )
    results.add_options(parser)


def contest(work: Work, given: argparse.Namespace) -> None:
    """Print, then keep a row for each size, batch and contender; the contenders of a batch run in turns."""
    given.contenders = installed(given.contenders)
    machine = measure(given.device, getattr(torch, given.precision), TURNS if given.turns > 1 else 1)
    facts = about(given, machine)
    on_card = given.device.startswith("cuda")
    counted, only = ("ms", {"peak GB": fixed(1)}) if on_card else ("CPU ms", {})
    columns = {"size": str, "batch": str, "contender": str, "ms": fixed(0), counted: fixed(0), "x peer": fixed(2)}
    columns |= {"of matmul": share, "audio hours/s": fixed(4), "parameters, M": fixed(2), "GFLOP": fixed(0), **only}
    behind = "" if given.precision == "float32" else f"_{given.precision}"
    table = Results(work.name + behind, columns, bars=counted, within=("size", "batch"))
    by_seconds = [(max(1, round(seconds / LONGEST)), LONGEST) for seconds in given.batch_seconds]
    for size, (count, longest) in itertools.product(given.sizes, [*given.batches, *by_seconds]):
        dim = encoder_config(encoder_of_size(size))["dim"] if given.without_front_end else None
        batch = Batch(*(part.to(given.device) for part in make_batch(count, longest, blocks_dim=dim)))
        entered: dict[str, Entered] = {}
        contenders = enter(_makers(work, given, size, batch, entered), expected=(RuntimeError,))
        if OURS in given.contenders and OURS not in contenders:
            raise InputError(f"ours must run; it was left out of {size} {count}x{longest:g}, as said above.")
        turns = race(contenders, turns=given.turns, warm_up=0, synchronize=synchronizer(given.device))
        taken = {name: turn.seconds if on_card else turn.cpu_seconds for name, turn in turns.items()}
        peer = min((taken[name] for name in RELATIVE if name in taken), default=None)
        frames_per_second = BLOCK_FRAMES_PER_SECOND if given.without_front_end else FRAMES_PER_SECOND
        audio_hours = float(batch.lengths.sum()) / frames_per_second / 3600
        for name, seconds in taken.items():
            net = entered[name]
            values = {"size": size, "batch": f"{count}x{longest:g}", "contender": name}
            values |= {"ms": 1000 * turns[name].seconds, counted: 1000 * seconds, "x peer": peer and peer / seconds}
            values |= {"of matmul": net.flops / seconds / machine.matmul, "audio hours/s": audio_hours / seconds}
            values |= {"parameters, M": net.parameters / 1e6, "GFLOP": net.flops / 1e9, "peak GB": net.peak}
            table.row(*(values[heading] for heading in columns))
    table.keep(given.output_dir, facts)


def _makers(
    work: Work, given: argparse.Namespace, size: str, batch: Batch, entered: dict[str, Entered]
) -> dict[str, Callable[[], Contender]]:
    """Give what makes each contender and each variant, runs it twice, and notes what is known of it then."""

    def make(contender: str, encoder_name: str, named: str, prepare: Prepare, by_onednn: bool) -> Contender:
        torch.manual_seed(0)
        before = _allocated(given.device)
        net = make_net(contender, encoder_name, with_front_end=not given.without_front_end).to(given.device)
        flops = count_flops(net, batch.features, batch.lengths, backward=work.backward)
        prepare(net, batch)
        run = work.ready(net, batch)
        run = with_onednn(run) if by_onednn else run
        run()  # compiles, finds algorithms, fills the allocator
        peak = _peak(run, given.device)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        entered[named] = Entered(parameters, flops, peak and (peak - before) / 1e9)
        return run

    return {
        (named := name + behind + libraries): functools.partial(
            make, contender, encoder_name, named, prepare, bool(libraries)
        )
        for name, (contender, encoder_name) in entries(given.contenders, size, given.attentions).items()
        for behind, prepare in work.variants(contender).items()
        for libraries in ["", *([", oneDNN"] if given.onednn else [])]
    }


def with_onednn(run: Contender) -> Contender:
    """Switch torch's matrix products to oneDNN while a contender runs; the others keep torch's choice."""

    def switched() -> object:
        with onednn():
            return run()

    return switched


def compile_blocks(net: Net, batch: Batch) -> None:
    """Compile each block for the batch's shape, as for one of a few bucketed shapes; all share the code."""
    for block in net.blocks:
        block.compile(dynamic=False)


def count_flops(net: nn.Module, *inputs: Tensor, backward: bool) -> float:
    """Count the multiplications and additions of a net's matrix products and convolutions, two for each pair.

    A backward pass is counted as twice the forward pass: torch's counter takes the weight gradient of a depthwise
    convolution for that of a full one.
    """
    net.eval()
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _product})  # which it lacks
    with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):  # it knows the products of attention's plain form
        net(*inputs)
    return float(counter.get_total_flops()) * (3 if backward else 1)


def _product(_: torch.Size, left: torch.Size, right: torch.Size, out_shape: torch.Size | None = None) -> int:
    return 2 * left[0] * left[1] * right[1]


def _allocated(device: str) -> float:
    return float(torch.cuda.memory_allocated()) if device.startswith("cuda") else 0.0


def _peak(run: Contender, device: str) -> float | None:
    """Bytes in use at most while a contender runs, on a card."""
    if not device.startswith("cuda"):
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def _batch(text: str) -> tuple[int, float]:
    count, seconds = text.split("x")
    return int(count), float(seconds)
