"""python -m benchmarks.gpu.lattices: losses on a device, with their gradients, beside the plain form in float64.

On a GPU the losses are sums of a Triton kernel (`asr.base.kernels.lattice_triton`). Each lattice is of an utterance
with random lengths and logits; frames, tokens and logits of the padding are the same on both sides.
"""

import argparse
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from asr.base.kernels import ctc_loss, transducer_loss
from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.machine import about, check_available
from benchmarks.results import Columns, Results, fixed

NAME = "gpu_lattices"
LOSSES: dict[str, Sequence[int] | None] = {"ctc": None, "transducer": (), "tdt": (0, 1, 2, 3, 4)}  # durations
PRECISIONS = ("float32", "bfloat16")  # of the logits
VOCAB_SIZE, MAX_FRAMES, MAX_TOKENS, BATCH = 64, 200, 40, 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per loss and precision."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.lattices", description=__doc__)
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--lattices", type=int, default=50, metavar="N", help="number of lattices (default: 50)")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    check_available(options.device)
    columns: Columns = {"loss": str, "logits": str, "by": str, "lattices": fixed(0), "not finite": fixed(0)}
    columns |= dict.fromkeys(("difference", "gradient difference"), lambda value: f"{value:.1e}")
    table = Results(NAME, columns, bars="difference")
    facts = about(options)
    kernel = ctc_loss.triton_lattice(torch.device(options.device))
    for loss in LOSSES:
        for precision in PRECISIONS:
            figures = compare(loss, getattr(torch, precision), options.device, options.lattices)
            table.row(loss, precision, "plain torch" if kernel is None else "Triton", options.lattices, *figures)
        table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)
    return 0


def compare(loss: str, dtype: torch.dtype, device: str, number: int) -> tuple[int, float, float]:
    """Compute a loss of random lattices on a device, and in float64 on the CPU from the same logits.

    Returns:
        The number of values that are not finite, in losses and gradients; the largest relative difference of a loss;
        and the largest norm of an utterance's difference of gradients, relative to the norm of its gradient.
    """
    generator = torch.Generator().manual_seed(0)
    not_finite, differences, gradient_differences = 0, [0.0], [0.0]
    for begin in range(0, number, BATCH):
        size = min(BATCH, number - begin)
        lengths = torch.randint(2 * MAX_TOKENS, MAX_FRAMES + 1, (size,), generator=generator)
        token_lengths = torch.randint(1, MAX_TOKENS + 1, (size,), generator=generator)
        tokens = torch.randint(1, VOCAB_SIZE, (size, MAX_TOKENS), generator=generator)
        durations = LOSSES[loss]
        cells = (MAX_FRAMES,) if durations is None else (MAX_FRAMES, MAX_TOKENS + 1)
        logits = torch.randn(size, *cells, VOCAB_SIZE + len(durations or ()), generator=generator).to(dtype)
        batch = tokens, lengths, token_lengths
        losses, gradients = computed(loss, logits.to(device), *(part.to(device) for part in batch))
        with (
            patch.object(ctc_loss, "triton_lattice", lambda device: None),
            patch.object(transducer_loss, "triton_lattice", lambda device: None),
        ):
            expected, expected_gradients = computed(loss, logits.double(), *batch)
        not_finite += int((~losses.isfinite()).sum() + (~gradients.isfinite()).sum())
        differences += ((losses - expected) / expected).abs().tolist()
        errors, norms = (each.flatten(1).norm(dim=1) for each in (gradients - expected_gradients, expected_gradients))
        gradient_differences += (errors / norms).tolist()
    return not_finite, largest(differences), largest(gradient_differences)


def largest(values: Sequence[float]) -> float:
    """Return the largest value, NaN if there is one."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def computed(
    loss: str, logits: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss of each utterance and the gradient of the logits; return both on the CPU, in float64."""
    logits = logits.detach().requires_grad_()
    durations = LOSSES[loss]
    if durations is None:
        log_probs = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        targets = {"tokens": tokens, "token_lengths": token_lengths}
        losses = ctc_loss.ctc_loss(log_probs, lengths, targets)
    else:
        losses = transducer_loss.transducer_loss(logits, tokens, lengths, token_lengths, durations)
    losses.sum().backward()
    assert logits.grad is not None
    return losses.detach().cpu().double(), logits.grad.cpu().double()


if __name__ == "__main__":
    run_command(main)
