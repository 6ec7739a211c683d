"""python -m benchmarks.gpu.launches: kernel launches, waits for the device, host time and memory of training steps.

Without a GPU, kernels are counted and not run (`benchmarks.null_gpu`), so there are no times of the device.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

from asr.apps.doctor.trial import set_modes, step_bytes
from asr.base.kernels import ctc_loss, transducer_loss
from asr.base.settings.conf import default_settings
from asr.core.build import build_adapter, build_features, build_model, build_optimizer, build_tokenizer, optimizer_bytes
from asr.core.cli.command import run_command
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.core.training.gradients import divide_and_clip
from asr.core.training.lightning_internals import moving_average
from asr.core.training.objective import Losses
from asr.core.training.step_sums import StepBatches, StepRecord, StepSums, wait_for
from asr.errors import InputError
from benchmarks import null_gpu, results
from benchmarks.features import composed
from benchmarks.gpu.counts import Counts, count, is_null
from benchmarks.machine import about
from benchmarks.nets import TOKENS_PER_SECOND, VOCAB_SIZE
from benchmarks.results import Columns, Results, fixed

NAME = "gpu_launches"
MODULE = f"{__package__}.launches"
SEED = 1
FIRST_LETTER = 0x4E00
AVERAGE, CHECKPOINTING, LORA, ACCUMULATION, LOGGED = "average", "checkpointing", "lora", "accumulation", "logged"
NO_TRITON = "no-triton"
WAYS = (AVERAGE, CHECKPOINTING, LORA, ACCUMULATION, LOGGED, NO_TRITON)
HEADS = ("ctc_self_conditioned", "transducer", "tdt")
CASES = [  # overrides of conf/train.yaml, and WAYS
    *(f"encoder={encoder} head=ctc" for encoder in ("conformer_s", "conformer_m", "conformer_l", "fast_conformer_l")),
    *(f"encoder=conformer_s head=ctc {way}" for way in WAYS),
    *(f"encoder=conformer_s head={head}{way}" for head in HEADS for way in (f" {NO_TRITON}", "")),
]
STUB_LAUNCHES = {  # launches of a step, by case: this program with torch 2.11.0 on a machine without a GPU
    "encoder=conformer_s head=ctc": 4732,
    "encoder=conformer_m head=ctc": 4540,
    "encoder=conformer_l head=ctc": 4847,
    "encoder=conformer_s head=transducer": 4873,
    "encoder=conformer_s head=tdt": 4886,
}
ATTENTION = re.compile(r"_scaled_dot_product_(\w*attention)$")


class Size(NamedTuple):
    """Size of a batch.

    Args:
        utterances: number of utterances.
        seconds: seconds of the longest of them; the shortest has 0.7 of it.
        vocab_size: number of tokens, with the blank.
    """

    utterances: int
    seconds: float
    vocab_size: int


class Measured(NamedTuple):
    """What a training step takes.

    Args:
        counts: launches, waits and memory.
        host: seconds of the CPU.
        device: seconds of the step, including the device; None: there is no GPU.
        uncounted: bytes that the forecast does not count: the batch, and a workspace of cuBLAS.
        forecast: bytes of asr.doctor's forecast.
        attention: names of the fused attention operations.
    """

    counts: Counts
    host: float
    device: float | None
    uncounted: int
    forecast: float
    attention: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.launches", description=__doc__)
    parser.add_argument(
        "--cases", nargs="+", default=CASES, metavar="CASE", help=f"overrides of conf/train.yaml, and {', '.join(WAYS)}"
    )
    parser.add_argument("--batch", default="7x14", metavar="NxS", help="N utterances of at most S seconds")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, metavar="V", help="tokens (default: %(default)s)")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        return again_on_null_gpu(sys.argv[1:] if arguments is None else arguments)
    utterances, seconds = options.batch.split("x")
    if is_null():
        F.ctc_loss = partial(longest, compute=F.ctc_loss)
    columns: Columns = {"case": str, "launches": fixed(0), "waits": fixed(0), "host ms": fixed(1), "ms": fixed(1)}
    columns |= {"peak GB": fixed(2), "forecast GB": fixed(2), "attention": str, "waits in": listed}
    table, facts = Results(NAME, columns, bars="launches"), about(options)
    for case in options.cases:
        with ExitStack() as stack:
            if NO_TRITON in case.split():
                for module in (ctc_loss, transducer_loss):
                    stack.enter_context(patch.object(module, "triton_lattice", lambda device: None))
            measured = measure(case, Size(int(utterances), float(seconds), options.vocab_size), options.turns)
        counts, waits = measured.counts, measured.counts.waits
        times = [None if seconds is None else 1000 * seconds for seconds in (measured.host, measured.device)]
        memory = (counts.peak - measured.uncounted) / 1e9, measured.forecast / 1e9
        attention = " ".join(measured.attention) or None
        table.row(case, counts.launches, waits.total(), *times, *memory, attention, waits or None)
        table.write(options.output_dir, facts)
    table.save(options.output_dir, facts)
    return 0


def listed(waits: Mapping[str, int]) -> str:
    """Format the number of waits of each place."""
    return ", ".join(f"{place} {number}" for place, number in waits.items())


def again_on_null_gpu(arguments: Sequence[str]) -> int:
    """Run this program in a process with a null GPU; return its status.

    Raises:
        InputError: there is no null GPU on this machine.
    """
    if reason := null_gpu.missing():
        raise InputError(f"there must be a GPU or a null GPU; got neither, because {reason}.")
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | null_gpu.build(Path(folder))
        return subprocess.run([sys.executable, "-m", MODULE, *arguments], env=environment, check=False).returncode


def measure(case: str, size: Size, turns: int) -> Measured:
    """Measure the training steps of a case."""
    words = case.split()
    ways = [word for word in words if word in WAYS]
    model, config = made(size.vocab_size, *(word for word in words if word not in WAYS))
    if LORA in ways:
        build_adapter(default_settings("adapter", "lora")).insert(model)
    model.cuda()
    set_modes(model)
    batch = batch_of(model, size)
    if CHECKPOINTING in ways:
        recompute_blocks(model.encoder)
    step = Step(model, config, batch, ways)
    torch.manual_seed(SEED)  # chunks of streaming encoders are drawn, as in a training, on the CPU
    state = optimizer_bytes(config, model, model.depths)
    forecast = step_bytes(model, batch.to("cuda"), autocast, AVERAGE in ways, state)
    model.zero_grad(set_to_none=True)
    with Attention() as attention:
        step()
    before = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    state = sum(tensor.numel() * tensor.element_size() for tensor in step.state())
    counts = count(step)
    host = median(timed(step) for _ in range(turns))
    device = None if is_null() else median(timed(step, torch.cuda.synchronize) for _ in range(turns))
    return Measured(counts, host, device, before - state, forecast, sorted(attention.names))


class Attention(TorchDispatchMode):
    """Collects the names of the fused attention operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; torch calls this for each operation."""
        if match := ATTENTION.match(func.overloadpacket.__name__):
            self.names.add(match[1])
        return func(*args, **(kwargs or {}))


def timed(work: Callable[[], object], end: Callable[[], object] | None = None) -> float:
    """Return the seconds of a function: of this process on the CPU or, with `end`, until `end` has returned."""
    clock = time.process_time if end is None else time.perf_counter
    torch.cuda.synchronize()
    begun = clock()
    work()
    if end is not None:
        end()
    return clock() - begun


autocast = partial(torch.autocast, "cuda", torch.bfloat16)


def made(vocab_size: int, *overrides: str) -> tuple[Model, Mapping[str, Any]]:
    """Return a model with random weights and a tokenizer of letters, and the config."""
    config = composed(*overrides)
    tokenizer, features = build_tokenizer({**config, "tokenizer": {"name": "char"}}), build_features(config)
    tokenizer.fit([" " + "".join(chr(FIRST_LETTER + number) for number in range(vocab_size - 2))])  # and the blank
    features.normalize.fit([torch.randn(100, features.dim)])
    return build_model(config, tokenizer, features), config


def batch_of(model: Model, size: Size) -> Batch:
    """Return a batch with noise in page-locked memory."""
    frames = torch.linspace(70 * size.seconds, 100 * size.seconds, size.utterances).long()
    token_lengths = (frames / 100 * TOKENS_PER_SECOND).long().clamp(min=1)
    tokens = torch.randint(1, model.tokenizer.vocab_size, (size.utterances, int(token_lengths.max())))
    lengths, views = frames.repeat(model.head.views), model.head.views
    features = torch.zeros(views * size.utterances, int(frames.max()), model.features.dim)
    targets = {"tokens": tokens, "token_lengths": token_lengths}
    names: Any = tuple(map(str, range(size.utterances)))
    return Batch(features, lengths, targets, names, (), num_frames=tuple(lengths.tolist())).pin_memory()


class Step:
    """An optimizer step as `asr.core.training.task` takes it."""

    def __init__(self, model: Model, config: Mapping[str, Any], batch: Batch, ways: Sequence[str]) -> None:
        self.model, self.batch, self.ways = model, batch, ways
        self.optimizer = build_optimizer(dict(config), model, model.depths)
        self.max_norm = config["trainer"]["gradient_clip_val"]
        self.number = 0
        self.average: Any = moving_average(0.999)  # called without a Trainer
        self.average._average_model = AveragedModel(model, use_buffers=True) if AVERAGE in ways else None

    def state(self) -> list[Tensor]:
        """Return the tensors that stay from step to step."""
        values = [value for state in self.optimizer.state.values() for value in state.values()]
        moments = [value for value in values if isinstance(value, Tensor)]
        averages = self.average._average_model
        own = [] if averages is None else [*averages.parameters(), *averages.buffers()]
        return [*self.model.parameters(), *self.model.buffers(), *moments, *own]

    def __call__(self) -> None:
        """Take a step."""
        torch.manual_seed(SEED)
        model, batches = self.model, StepBatches()
        for _ in range(2 if ACCUMULATION in self.ways else 1):
            batch = self.batch.to("cuda", non_blocking=True)
            with autocast():
                losses = Losses(model.head.losses(model.encode(batch), batch.targets), batch.token_lengths)
            losses.loss.sum().backward()
            batches.add(batch, losses)
        sums = batches.sums(0.0, 0.0, model.head.loss_names)
        units = sums[StepSums._fields.index("units")].clamp(min=1)
        norm = divide_and_clip(model.parameters(), units, self.max_norm, lambda tensor: tensor)
        if LOGGED in self.ways:
            wait_for([StepRecord(1, 1, batches, sums, norm)], model.head.loss_names)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1
        if AVERAGE in self.ways:
            self.average.on_train_batch_end(SimpleNamespace(global_step=self.number), model)


def longest(
    log_probs: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    token_lengths: Tensor,
    compute: Callable[..., Tensor],
    **how: Any,
) -> Tensor:
    """Compute torch's CTC loss of utterances of equal length, because it reads the lengths, noise on a null GPU."""
    for values, value in ((lengths, log_probs.shape[0]), (token_lengths, tokens.shape[1])):
        (ctypes.c_int64 * len(values)).from_address(values.data_ptr())[:] = [value] * len(values)
    return compute(log_probs, tokens, lengths, token_lengths, **how)


if __name__ == "__main__":
    run_command(main)
