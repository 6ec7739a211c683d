"""python -m benchmarks.optimizers: time of an optimizer's step, relative to forward and backward pass.

A batch has utterances of up to 10 s. On a CPU, the times are CPU time. The optimizer's time is the mean of four steps,
because optimizer.every=4 moves other weights in each of them (Muon), or updates the scales in one (ScaledAdam).
"""

import argparse
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from asr.apps.doctor.memory import FULL
from asr.apps.doctor.trial import set_modes
from asr.core.build import build_optimizer
from asr.core.cli.command import run_command
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from benchmarks import results
from benchmarks.features import composed
from benchmarks.machine import about
from benchmarks.race import race
from benchmarks.results import Columns, Results, fixed
from benchmarks.training_memory import make_batch, make_model

OPTIMIZERS = ["optimizer=adamw", "optimizer=muon", "optimizer=muon optimizer.every=1", "optimizer=scaled_adam"]
UTTERANCE_SECONDS = 10.0
CYCLE = 4
MAX_NORM = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per encoder, seconds of audio in a step, and optimizer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=__doc__)
    parser.add_argument("--encoders", nargs="+", default=["conformer_xs", "conformer_s"], help="files of conf/encoder")
    parser.add_argument("--seconds", nargs="+", type=int, default=[20, 100], metavar="S", help="of audio in a step")
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS, metavar="OVERRIDES", help="of conf/train.yaml")
    parser.add_argument("--device", default="cpu")
    results.add_options(parser)
    parser.set_defaults(turns=3)
    options = parser.parse_args(arguments)
    columns: Columns = {
        "encoder": str,
        "audio s": fixed(0),
        "optimizer": str,
        "passes ms": fixed(1),
        "optimizer ms": fixed(1),
    }
    columns |= {"share %": fixed(1)}
    table = Results("optimizers", columns, bars="share %", group_by=("encoder", "audio s"))
    synchronize = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    for encoder in options.encoders:
        model = make_model(encoder, FULL).to(options.device)
        set_modes(model)
        steps = {
            given: build_optimizer(composed(*given.split()), model, model.depths).step for given in options.optimizers
        }
        for seconds in options.seconds:
            count = max(1, round(seconds / UTTERANCE_SECONDS))
            passes = partial(both_passes, model, make_batch(count, seconds / count).to(options.device))
            whole = race({"": passes}, turns=options.turns, synchronize=synchronize)[""]
            taken = race(steps, turns=options.turns, times=CYCLE, synchronize=synchronize)
            for given, turn in taken.items():
                times = [each.cpu_seconds if options.device == "cpu" else each.seconds for each in (whole, turn)]
                table.row(encoder, seconds, given, *(1e3 * time for time in times), 100 * times[1] / times[0])
    table.save(options.output_dir, about(options))
    return 0


def both_passes(model: Model, batch: Batch) -> None:
    """Compute and clip the gradients of a batch."""
    model.zero_grad(set_to_none=True)
    model.head.losses(model.encode(batch), batch.targets)["loss"].sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)


if __name__ == "__main__":
    run_command(main)
