"""python -m benchmarks.train_step: training steps of Conformers, beside another implementation of the same net."""

import argparse
import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asr.build import build_optimizer, component
from asr.encoder.conformer import Conformer
from asr.head.ctc import CTC
from asr.settings import CONF

VOCAB_SIZE = 1024
NUM_MEL_BINS = 80
FRAMES_PER_SECOND = 100
TOKENS_PER_SECOND = 3.5  # of 1024 pieces, about LibriSpeech's
SHORTEST, LONGEST = 10.0, 14.0  # seconds of the utterances of a batch, as sorting by duration leaves them
HEADER = (
    f"{'size':4} {'batch s':>8} {'contender':26} {'ms/step':>9} {'x first':>8} {'audio h/s':>10} "
    f"{'of matmul':>10} {'peak GB':>8}"
)

Step = Callable[[], None]


def main() -> None:
    """Print a line for each size, batch and contender, and the machine's own rates above them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="+", default=["s", "m"], help="of conf/encoder/conformer_*.yaml")
    parser.add_argument("--batch-seconds", nargs="+", type=float, default=[80], metavar="S")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["ours", "parakeet"])
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="turns of each contender; medians are shown"
    )
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="in each turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets the lines as JSON")
    given = parser.parse_args()
    dtype = getattr(torch, given.precision)
    rate = matmul_rate(given.device, dtype)
    copied = copy_rate(given.device)
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    rates = f"{rate / 1e12:.2f} TFLOP/s, copies {copied / 1e9:.0f} GB/s"
    print(f"{name}, torch {torch.__version__}, {given.precision}: {rates}")
    print(HEADER, flush=True)
    lines = []
    for size in given.sizes:
        for seconds in given.batch_seconds:
            for line in compare(size, seconds, given.device, dtype, given.contenders, given.repeats, given.steps, rate):
                lines.append(line)
                print(as_text(line), flush=True)
    if given.json:
        machine = {"machine": name, "torch": torch.__version__, "matmul_flops": rate, "copy_bytes": copied}
        given.json.write_text(json.dumps({**machine, "precision": given.precision, "lines": lines}, indent=2) + "\n")


def as_text(line: dict[str, Any]) -> str:
    """Lay a line out under HEADER."""
    if "failed" in line:
        return f"{line['size']:4} {line['batch_seconds']:8.0f} {line['contender']:26} {line['failed']}"
    return (
        f"{line['size']:4} {line['batch_seconds']:8.0f} {line['contender']:26} {line['ms']:9.2f} {line['ratio']:8.2f} "
        f"{line['audio_hours_per_second']:10.3f} {line['share_of_matmul']:10.1%} {line['peak_gb']:8.2f}"
    )


def compare(
    size: str,
    seconds: float,
    device: str,
    dtype: torch.dtype,
    contenders: list[str],
    repeats: int,
    steps: int,
    rate: float,
) -> Iterator[dict[str, Any]]:
    """Time the contenders on one batch, in turns."""
    batch = make_batch(seconds, device)
    audio_seconds = float(batch[1].sum()) / FRAMES_PER_SECOND
    made: dict[str, Step] = {}
    peaks: dict[str, float] = {}
    failed: dict[str, str] = {}
    flops = count_flops(size, batch, device)
    for name in contenders:
        before = allocated(device)
        try:
            made[name] = CONTENDERS[name](size, batch, device, dtype)
            for _ in range(3):  # compiles, finds algorithms, fills the allocator
                made[name]()
            peaks[name] = peak_of(made[name], device) - before
        except (RuntimeError, ImportError) as error:
            made.pop(name, None)
            failed[name] = (str(error) or type(error).__name__).splitlines()[0][:90]
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(repeats):
        for name, step in made.items():
            times[name].append(timed(step, device, steps))
    first = statistics.median(next(iter(times.values()))) if times else 0.0
    for name in contenders:
        about = {"size": size, "batch_seconds": seconds, "contender": name}
        if name in failed:
            yield {**about, "failed": failed[name]}
            continue
        middle = statistics.median(times[name])
        yield {
            **about,
            "ms": 1000 * middle,
            "ratio": first / middle,
            "audio_hours_per_second": audio_seconds / 3600 / middle,
            "share_of_matmul": flops / middle / rate,
            "peak_gb": peaks[name] / 1e9,
        }


def make_batch(seconds: float, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noise with the shape of speech: features (B, T, F), lengths (B,), tokens (B, U), token lengths (B,)."""
    count = max(1, round(seconds / LONGEST))
    lengths = (torch.linspace(LONGEST, SHORTEST, count) * FRAMES_PER_SECOND).long()
    token_lengths = (lengths / FRAMES_PER_SECOND * TOKENS_PER_SECOND).long()
    noise = torch.Generator().manual_seed(0)
    features = torch.randn(count, int(lengths.max()), NUM_MEL_BINS, generator=noise)
    tokens = torch.randint(1, VOCAB_SIZE, (count, int(token_lengths.max())), generator=noise)
    return features.to(device), lengths.to(device), tokens.to(device), token_lengths.to(device)


def settings(size: str) -> dict[str, Any]:
    """The encoder's settings, with its parts'."""
    import yaml

    folder = CONF / "encoder"
    held = yaml.safe_load((folder / f"conformer_{size}.yaml").read_text())
    for part in held.pop("defaults")[:-1]:
        [(group, name)] = part.items()
        held[group] = yaml.safe_load((folder / group / f"{name}.yaml").read_text()) | held.get(group, {})
    return held


class Ours(nn.Module):
    """Our encoder and head, to the loss of a batch."""

    def __init__(self, size: str) -> None:
        super().__init__()
        self.encoder: Conformer = component("encoder", settings(size))(NUM_MEL_BINS)
        self.head = CTC(self.encoder.output_dim, VOCAB_SIZE)

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        """Sum the losses."""
        encoder_out, encoder_out_lengths = self.encoder(features, lengths)
        return self.head.losses(self.head(encoder_out), encoder_out_lengths, tokens, token_lengths).sum()


class Parakeet(nn.Module):
    """Hugging Face's Conformer-CTC with our front-end in the place of its own: the same work otherwise."""

    def __init__(self, size: str) -> None:
        from transformers import ParakeetCTCConfig, ParakeetForCTC

        super().__init__()
        ours = settings(size)
        shape = {
            "hidden_size": ours["dim"],
            "num_hidden_layers": ours["num_layers"],
            "num_attention_heads": ours["num_heads"],
            "intermediate_size": ours["feed_forward_dim"],
            "conv_kernel_size": ours["kernel_size"],
            "subsampling_factor": 4,
            "num_mel_bins": NUM_MEL_BINS,
            "scale_input": False,
        }
        rates = dict.fromkeys(("dropout", "activation_dropout", "attention_dropout"), ours["dropout"])
        rates |= {"dropout_positions": 0.0, "layerdrop": 0.0}
        config = ParakeetCTCConfig(
            vocab_size=VOCAB_SIZE, pad_token_id=VOCAB_SIZE - 1, encoder_config={**shape, **rates}
        )
        config._attn_implementation = "sdpa"
        config.encoder_config._attn_implementation = "sdpa"
        self.net = ParakeetForCTC(config)
        front_end = component("encoder/subsampling", ours["subsampling"])
        self.net.encoder.subsampling = _FrontEnd(front_end(NUM_MEL_BINS, ours["dim"]))

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        """Sum the losses."""
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        logits = self.net(input_features=features, attention_mask=mask).logits
        log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)
        out_lengths = (lengths + 3) // 4
        blank = self.net.config.pad_token_id
        labels = tokens - 1  # its blank is the last id
        return F.ctc_loss(log_probs, labels, out_lengths, token_lengths, blank=blank, reduction="sum")


class _FrontEnd(nn.Module):
    def __init__(self, subsampling: nn.Module) -> None:
        super().__init__()
        self.subsampling = subsampling

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        return self.subsampling(features, attention_mask.sum(-1))[0]


def training_step(net: nn.Module, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """A step as training takes it: the loss over the tokens, clipped gradients, fused AdamW."""
    optimizer = build_optimizer({"optimizer": {"name": "adamw", "lr": 1e-4}}, net.parameters())
    tokens = batch[3].sum()

    def step() -> None:
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
            loss = net(*batch) / tokens
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Our net, eagerly."""
    torch.manual_seed(0)
    return training_step(Ours(size).to(device).train(), batch, device, dtype)


def ours_compiled(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Our net, its encoder compiled for any length."""
    torch.manual_seed(0)
    net = Ours(size).to(device).train()
    net.encoder.compile(dynamic=True)
    return training_step(net, batch, device, dtype)


def ours_compiled_blocks(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Our net, each block compiled for any length: the first one's code serves all."""
    torch.manual_seed(0)
    net = Ours(size).to(device).train()
    for block in net.encoder.blocks:
        block.compile(dynamic=True)
    return training_step(net, batch, device, dtype)


def ours_graphs(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Our net, its forward and backward passes recorded once as CUDA graphs, and replayed: for this shape only."""
    torch.manual_seed(0)
    net = Ours(size).to(device).train()
    features, lengths = batch[0].clone(), batch[1].clone()
    with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32, cache_enabled=False):
        net.encoder = torch.cuda.make_graphed_callables(net.encoder, (features, lengths))
    return training_step(net, batch, device, dtype)


def parakeet(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Parakeet, eagerly, with SDPA."""
    torch.manual_seed(0)
    return training_step(Parakeet(size).to(device).train(), batch, device, dtype)


def parakeet_compiled(size: str, batch: tuple[Tensor, ...], device: str, dtype: torch.dtype) -> Step:
    """Parakeet, its encoder compiled for any length."""
    torch.manual_seed(0)
    net = Parakeet(size).to(device).train()
    net.net.encoder.compile(dynamic=True)
    return training_step(net, batch, device, dtype)


CONTENDERS = {
    "ours": ours,
    "ours_compiled": ours_compiled,
    "ours_compiled_blocks": ours_compiled_blocks,
    "ours_graphs": ours_graphs,
    "parakeet": parakeet,
    "parakeet_compiled": parakeet_compiled,
}


def count_flops(size: str, batch: tuple[Tensor, ...], device: str) -> float:
    """Count the multiplications and additions of our net's step, forward and backward, dropout apart."""
    net = Ours(size).to(device).eval()
    with FlopCounterMode(display=False) as counter:
        encoder_out, _ = net.encoder(batch[0], batch[1])
        net.head(encoder_out).sum().backward()
    return float(counter.get_total_flops())


def timed(step: Step, device: str, steps: int) -> float:
    """Seconds of a step, the mean of a turn."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / steps


def peak_of(step: Step, device: str) -> float:
    """Bytes that a step needs at most, on a GPU; else nan."""
    if not device.startswith("cuda"):
        return float("nan")
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated())


def allocated(device: str) -> float:
    """Bytes in use on a GPU; else nan."""
    return float(torch.cuda.memory_allocated()) if device.startswith("cuda") else float("nan")


def synchronize(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product of random numbers: the best of several."""
    size = 8192 if device.startswith("cuda") else 1024
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = left @ right

    def multiply() -> None:
        torch.mm(left, right, out=product)

    best = min(timed(multiply, device, 10) for _ in range(5))
    return 2 * size**3 / best


def copy_rate(device: str) -> float:
    """Bytes read and written a second by a large copy: the best of several."""
    source = torch.randn(2**28 if device.startswith("cuda") else 2**25, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    best = min(timed(copy, device, 5) for _ in range(5))
    return 2 * source.nbytes / best


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
