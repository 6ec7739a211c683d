"""python -m benchmarks.step_profile: where a training step's time goes, by kernel, and what its CTC loss costs."""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from asr.cli.command import run_command
from benchmarks import results
from benchmarks.contest import LONGEST
from benchmarks.machine import about, measure, synchronizer
from benchmarks.nets import OURS, VOCAB_SIZE, Batch, make_batch, make_net
from benchmarks.race import Contender, race
from benchmarks.results import Results, fixed, share
from benchmarks.train_step import training_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each of the kernels that take longest, one for the others, and those of the CTC loss."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_profile", description=__doc__)
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16 by autocast")
    parser.add_argument("--size", default="s", help="of conf/encoder/conformer_*.yaml (s)")
    parser.add_argument("--batch-seconds", type=float, default=80.0, metavar="S", help=f"of {LONGEST:g} s each (80)")
    parser.add_argument("--most", type=int, default=20, metavar="N", help="kernels that have a row of their own (20)")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    dtype = getattr(torch, given.precision)
    facts = about(given, measure(given.device, dtype))
    count = max(1, round(given.batch_seconds / LONGEST))
    batch = Batch(*(part.to(given.device) for part in make_batch(count, min(LONGEST, given.batch_seconds))))
    step = training_step(make_net(OURS, f"conformer_{given.size}").to(given.device), batch, dtype)
    for _ in range(2):
        step()
    table = Results("step_profile", {"kernel": str, "calls": fixed(0), "ms": fixed(3), "of all": share}, bars="ms")
    kernels = profiled(step, given.device)
    total = sum(ms for _, _, ms in kernels)
    for name, calls, ms in kernels[: given.most]:
        table.row(name, calls, ms, ms / total)
    others = kernels[given.most :]
    rest = sum(ms for _, _, ms in others)
    table.row("all others", sum(calls for _, calls, _ in others), rest, rest / total)
    taken = race(ctc_losses(batch), turns=given.turns, synchronize=synchronizer(given.device))
    for name, turn in taken.items():
        table.row(f"({name}, forward and backward, by the clock)", 1, 1000 * turn.seconds, None)
    table.keep(given.output_dir, facts)
    return 0


def profiled(step: Contender, device: str) -> list[tuple[str, int, float]]:
    """Run a step; its kernels, or on a processor its operations, with calls and ms, the longest first."""
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
    """Make what computes the CTC loss of a batch: torch's, and where there is a GPU cuDNN's."""
    frames = batch.features.shape[1] // 4
    logits = torch.randn(frames, len(batch.lengths), VOCAB_SIZE, device=batch.features.device, requires_grad=True)
    lengths = (batch.lengths // 4).clamp(max=frames)

    def torchs() -> None:
        loss = F.ctc_loss(logits.log_softmax(-1), batch.tokens, lengths, batch.token_lengths, reduction="sum")
        torch.autograd.grad(loss, logits)

    # cuDNN's is torch's choice for targets without padding, 32-bit integers and lengths on the processor.
    flat = torch.cat([row[:length] for row, length in zip(batch.tokens, batch.token_lengths.tolist(), strict=True)])
    flat, on_cpu = flat.int().cpu(), [part.int().cpu() for part in (lengths, batch.token_lengths)]
    on_cpu[0] = torch.full_like(on_cpu[0], frames)  # it takes no padding of frames, either

    def cudnns() -> None:
        loss = F.ctc_loss(logits.log_softmax(-1), flat, *on_cpu, reduction="sum")
        torch.autograd.grad(loss, logits)

    named = {f"torch's CTC loss, {frames} frames, {VOCAB_SIZE} tokens": torchs}
    return named | ({"cuDNN's, without padding": cudnns} if logits.is_cuda else {})


if __name__ == "__main__":
    run_command(main)
