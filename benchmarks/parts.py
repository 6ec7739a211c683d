"""python -m benchmarks.parts: time of each part of a training step, compared with common implementations."""

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.components.encoder.block.convolution.depthwise_convolution import DepthwiseConvolution
from asr.core.cli.command import run_command
from asr.lengths import padding_mask
from benchmarks import results
from benchmarks.contest import count_flops
from benchmarks.machine import about, measure
from benchmarks.nets import NUM_MEL_BINS, OURS, encoder_config, make_batch, make_net, shape_of
from benchmarks.peers.front_end import FrontEnd
from benchmarks.race import Contender, race
from benchmarks.results import Columns, Results, fixed, share
from benchmarks.train_step import training_step

STEP = "the step"


class Part(NamedTuple):
    """A part of the network that is timed.

    Args:
        times: number of times that it runs in a training step.
        inputs: its input tensors.
        ours: asr's implementation.
        usual: a common implementation; None if asr's is the common one.
    """

    times: int
    inputs: tuple[Tensor, ...]
    ours: nn.Module
    usual: nn.Module | None = None


class UsualConvolution(DepthwiseConvolution):
    """asr's convolution module with torch's depthwise convolution, channels first."""

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x (B, T, D) and padding_mask (B, T) to (B, T, D)."""
        x = F.glu(self.pointwise1(x)).masked_fill(padding_mask[:, :, None], 0.0)
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.pointwise2(self.activation(self.norm(x, padding_mask)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per part, and one for the whole training step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=["s", "m"], help="sizes of conf/encoder/conformer_*.yaml (default: s m)"
    )
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16 uses autocast"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.precision)
    machine = measure(dtype=dtype)
    facts = about(options, machine)
    columns: Columns = {"size": str, "part": str, "times": fixed(0), "CPU ms": fixed(1)}
    columns |= {"of the step": share, "of matmul": share, "usual form, CPU ms": fixed(1)}
    table = Results("parts", columns, bars="CPU ms", group_by=("size",))
    for size in options.sizes:
        batch, net = make_batch(8, 10.0), make_net(OURS, f"conformer_{size}")
        parts = parts_of(net.encoder, f"conformer_{size}", batch.features, batch.lengths)
        contenders = {STEP: training_step(net, batch, dtype)}
        contenders |= {name: forward_backward(part.ours, part.inputs, dtype) for name, part in parts.items()}
        usual = {name: part.usual for name, part in parts.items() if part.usual}
        contenders |= {
            f"{name}, usual form": forward_backward(usual[name], parts[name].inputs, dtype) for name in usual
        }
        milliseconds = {name: 1000 * turn.cpu_seconds for name, turn in race(contenders, turns=options.turns).items()}
        for name, part in parts.items():
            rate = 1000 * count_flops(part.ours, *part.inputs, backward=True) / milliseconds[name]
            step_share = part.times * milliseconds[name] / milliseconds[STEP]
            figures = part.times, milliseconds[name], step_share, rate / machine.matmul or None
            table.row(size, name, *figures, milliseconds.get(f"{name}, usual form"))
        table.row(size, STEP, 1, milliseconds[STEP], 1.0, None, None)
    table.save(options.output_dir, facts)
    return 0


def parts_of(encoder: Any, encoder_name: str, features: Tensor, feature_lengths: Tensor) -> dict[str, Part]:
    """Split a `Conformer` into its parts, each with inputs of the shapes that it receives for these features."""
    shape = shape_of(encoder_config(encoder_name))
    x, lengths = encoder.subsampling(features, feature_lengths)
    x, mask, positions = (
        x.detach().requires_grad_(),
        padding_mask(lengths, x.shape[1]),
        encoder.first_block.positions(x),
    )
    inner = torch.randn(*x.shape[:2], shape.feed_forward_dim, requires_grad=True)
    block, layers = encoder.blocks[0], shape.num_layers
    front_end = FrontEnd(NUM_MEL_BINS, shape.num_channels, shape.dim, shape.dropout)
    convolution = UsualConvolution(
        shape.dim,
        lambda dim: block.convolution.norm,
        lambda: block.convolution.activation,
        kernel_size=shape.kernel_size,
        bias=True,
    )
    return {
        "front-end": Part(1, (features, feature_lengths), encoder.subsampling, front_end),
        "feed-forward": Part(2 * layers, (x,), block.feed_forward1),
        "attention": Part(layers, (x, positions, mask), block.attention),
        "convolution": Part(layers, (x, mask), block.convolution, convolution),
        "LayerNorm": Part(5 * layers, (x,), block.norm_output),
        "dropout of a branch": Part(4 * layers, (x,), block.dropout, nn.Dropout(shape.dropout)),
        "(dropout within a feed-forward)": Part(2 * layers, (inner,), block.dropout, nn.Dropout(shape.dropout)),
    }


def forward_backward(module: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> Contender:
    """Return a function that runs a module's forward pass in training mode and its backward pass."""
    gradient: list[Tensor] = []

    def run() -> None:
        module.train()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = module(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        gradient[:] = gradient or [torch.ones_like(out)]
        out.backward(gradient[0])
        for leaf in (*module.parameters(), *inputs):
            leaf.grad = None

    return run


if __name__ == "__main__":
    run_command(main)
