"""python -m benchmarks.step_profile: time of a training step by kernel, and time of its CTC loss."""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from asr.core.cli.command import run_command
from benchmarks import results
from benchmarks.contest import MAX_UTTERANCE_SECONDS
from benchmarks.machine import about, measure, synchronizer
from benchmarks.nets import OURS, VOCAB_SIZE, Batch, make_batch, make_net
from benchmarks.race import Contender, race
from benchmarks.results import Results, fixed, share
from benchmarks.train_step import training_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Print rows for the slowest kernels, one row for all other kernels, and rows for the CTC loss."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_profile", description=__doc__)
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16 uses autocast"
    )
    parser.add_argument("--size", default="s", help="size of conf/encoder/conformer_*.yaml (default: s)")
    parser.add_argument(
        "--batch-seconds", type=float, default=80.0, metavar="S", help="seconds of audio in the batch (default: 80)"
    )
    parser.add_argument(
        "--most", type=int, default=20, metavar="N", help="number of slowest kernels that get a row each (default: 20)"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.precision)
    facts = about(options, measure(options.device, dtype))
    count = max(1, round(options.batch_seconds / MAX_UTTERANCE_SECONDS))
    batch = Batch(
        *(part.to(options.device) for part in make_batch(count, min(MAX_UTTERANCE_SECONDS, options.batch_seconds)))
    )
    step = training_step(make_net(OURS, f"conformer_{options.size}").to(options.device), batch, dtype)
    for _ in range(2):
        step()
    table = Results("step_profile", {"kernel": str, "calls": fixed(0), "ms": fixed(3), "of the step": share}, bars="ms")
    kernels = profiled(step, options.device)
    total = sum(ms for _, _, ms in kernels)
    for name, calls, ms in kernels[: options.most]:
        table.row(name, calls, ms, ms / total)
    other_kernels = kernels[options.most :]
    other_ms = sum(ms for _, _, ms in other_kernels)
    table.row("all other kernels", sum(calls for _, calls, _ in other_kernels), other_ms, other_ms / total)
    turns = race(ctc_losses(batch), turns=options.turns, synchronize=synchronizer(options.device))
    for name, turn in turns.items():
        table.row(f"({name}, forward and backward, wall-clock)", 1, 1000 * turn.seconds, None)
    table.save(options.output_dir, facts)
    return 0


def profiled(step: Contender, device: str) -> list[tuple[str, int, float]]:
    """Profile a step; return (name, number of calls, ms) of its GPU kernels or CPU operations, slowest first."""
    on_card = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]
    with profile(activities=activities) as profiler:
        step()
        synchronizer(device)()
    rows = []
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if on_card else event.self_cpu_time_total
        if microseconds > 0 and (not on_card or event.device_type != torch.autograd.DeviceType.CPU):
            rows.append((event.key[:80], event.count, microseconds / 1000))
    return sorted(rows, key=lambda row: -row[2])


def ctc_losses(batch: Batch) -> dict[str, Contender]:
    """Return functions that compute a batch's CTC loss: torch's implementation and, on a GPU, cuDNN's."""
    frames = batch.features.shape[1] // 4
    logits = torch.randn(frames, len(batch.lengths), VOCAB_SIZE, device=batch.features.device, requires_grad=True)
    lengths = (batch.lengths // 4).clamp(max=frames)

    def run_torch() -> None:
        loss = F.ctc_loss(logits.log_softmax(-1), batch.tokens, lengths, batch.token_lengths, reduction="sum")
        torch.autograd.grad(loss, logits)

    # torch selects cuDNN's CTC loss for unpadded 32-bit targets and lengths in CPU memory.
    targets = torch.cat([row[:length] for row, length in zip(batch.tokens, batch.token_lengths.tolist(), strict=True)])
    targets, token_lengths = targets.int().cpu(), batch.token_lengths.int().cpu()
    unpadded = torch.full_like(token_lengths, frames)  # cuDNN's CTC loss accepts no padded frames

    def run_cudnn() -> None:
        loss = F.ctc_loss(logits.log_softmax(-1), targets, unpadded, token_lengths, reduction="sum")
        torch.autograd.grad(loss, logits)

    losses: dict[str, Contender] = {f"torch's CTC loss, {frames} frames, {VOCAB_SIZE} tokens": run_torch}
    return losses | ({"cuDNN's CTC loss, without padding": run_cudnn} if logits.is_cuda else {})


if __name__ == "__main__":
    run_command(main)
