"""python -m benchmarks.train_step: training steps of Conformers of equal size in asr and other toolkits."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asr.base.settings.conf import default_settings
from asr.core.build import build_optimizer
from asr.core.cli.command import run_command
from asr.interfaces import Encoded
from benchmarks.contest import Prepare, Work, add_options, compile_blocks, contest
from benchmarks.nets import OURS, Batch, Net
from benchmarks.race import Contender

MAX_NORM = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Time training steps: forward and backward pass, gradient clipping and AdamW."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step", description=__doc__)
    add_options(parser, ["8x10", "4x16"])
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.precision)

    def variants(contender: str) -> dict[str, Prepare]:
        preparations: dict[str, Prepare] = {"": lambda net, batch: None}
        if options.compile:
            preparations[", compiled"] = compile_blocks
        if contender == OURS and options.device.startswith("cuda"):
            preparations[", CUDA graphs"] = graph_with(dtype)
        return preparations

    work = Work("train_step", lambda net, batch: training_step(net, batch, dtype), backward=True, variants=variants)
    contest(work, options)
    return 0


def training_step(net: Net, batch: Batch, dtype: torch.dtype) -> Contender:
    """Return a function that runs a training step as asr.train does: loss per token, clipped gradients, fused AdamW."""
    net.train()
    settings = default_settings("optimizer", "adamw") | {"lr": 1e-4}
    optimizer = build_optimizer({"optimizer": settings}, net, {})

    def step() -> None:
        with torch.autocast(batch.features.device.type, dtype, enabled=dtype != torch.float32):
            loss = net.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def graph_with(dtype: torch.dtype) -> Callable[[Net, Batch], None]:
    """Return a function that records a network's encoder as CUDA graphs (forward and backward) for a batch's shape."""

    def graph(net: Net, batch: Batch) -> None:
        net.train()
        example = (batch.features.clone(), batch.lengths.clone())
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32, cache_enabled=False):
            graphed: Any = torch.cuda.make_graphed_callables(WithTensors(net.encoder), example)
        net.encoder = WithEncoded(graphed)

    return graph


class WithTensors(nn.Module):
    """An encoder that returns its tensors alone, because CUDA graphs return nothing else."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.encoder(features, lengths)
        return encoded.out, encoded.lengths


class WithEncoded(nn.Module):
    """The reverse of `WithTensors`."""

    def __init__(self, encoder: Callable[..., tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Tensor, lengths: Tensor) -> Encoded:
        return Encoded(*self.encoder(features, lengths), {})


if __name__ == "__main__":
    run_command(main)
