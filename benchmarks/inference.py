"""python -m benchmarks.inference: forward passes of Conformers of equal size in asr and other toolkits."""

import argparse
from collections.abc import Sequence

import torch

from asr.core.cli.command import run_command
from benchmarks.contest import Prepare, Work, add_options, compile_blocks, contest
from benchmarks.nets import Batch, Net
from benchmarks.race import Contender


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the forward pass, from features to log_probs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__)
    add_options(parser, ["8x10", "4x16", "1x10"])
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.precision)
    variants: dict[str, Prepare] = {"": lambda net, batch: None}
    if options.compile:
        variants[", compiled"] = compile_blocks
    work = Work("inference", lambda net, batch: forward_pass(net, batch, dtype), False, lambda contender: variants)
    contest(work, options)
    return 0


def forward_pass(net: Net, batch: Batch, dtype: torch.dtype) -> Contender:
    """Return a function that computes a batch's log_probs."""
    net.eval()

    def forward() -> torch.Tensor:
        with torch.inference_mode(), torch.autocast(batch.features.device.type, dtype, enabled=dtype != torch.float32):
            return net(batch.features, batch.lengths)[0]

    return forward


if __name__ == "__main__":
    run_command(main)
