"""python -m benchmarks.tdt: the loss and the greedy search of TDT in asr, transformers and NeMo.

Losses: forward and backward passes on the same logits; the transducer loss of asr, which has no durations, is listed
for comparison. Searches: the same random weights, encoder_out and batches, in the shape of parakeet-tdt_ctc-110m. A
bias of the blank determines how many frames a token takes. All take turns on one thread.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from asr.base.kernels.transducer_loss import transducer_loss
from asr.base.settings.conf import default_settings
from asr.base.system.processes import return_memory
from asr.components.head.predictor.lstm import LSTMPredictor
from asr.components.head.transducer import Transducer
from asr.components.tokenizer.char import Char
from asr.core.build import component
from asr.core.cli.command import run_command
from asr.interfaces import Encoded
from benchmarks import results
from benchmarks.machine import about, in_fresh_process, peak_memory, peak_memory_reset
from benchmarks.race import enter, race
from benchmarks.results import Columns, Results, fixed

OURS, TRANSFORMERS, NEMO = "asr", "transformers", "NeMo"
RNNT, TORCHAUDIO = "asr, without durations", "torchaudio, without durations"
VOCAB_SIZE = 1025  # including the blank
OUTPUT_DIM = 512
SHAPE = {"joint_dim": 640, "joint_activation": "relu", "ctc_weight": 0.0}
PREDICTOR = {"dim": 640, "trains_blank": False, "dropout": 0.0}
DURATIONS: list[int] = default_settings("head", "tdt")["durations"]
FRAMES_PER_SECOND = 12.5
TOKENS_PER_SECOND = 3.5
ZERO_DURATION_BIAS = 10.0  # no token has duration 0, because transformers does not limit the tokens of a frame
MEGABYTE = 1e6

LOSS_COLUMNS: Columns = {
    "loss": str,
    "value": fixed(4),
    "CPU ms": fixed(0),
    "x ours": fixed(2),
    "MB above the logits": fixed(0),
}
SEARCH_COLUMNS: Columns = {
    "blank bias": fixed(1),
    "tokens per s": fixed(2),
    "frames visited per token": fixed(2),
    "search": str,
    "texts that differ from ours": str,
    "CPU ms": fixed(0),
    "x ours": fixed(2),
}

Search = Callable[[Tensor, Tensor], list[list[int]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of losses and a table of searches."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tdt", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="utterances in a batch (default: 8)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="length of utterances (default: 10)")
    parser.add_argument(
        "--blank-bias",
        type=float,
        nargs="+",
        default=[4.0, 6.0],
        metavar="B",
        help="added to the logit of the blank (default: 4 6)",
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = about(options)
    lengths = torch.full((options.batch,), round(options.seconds * FRAMES_PER_SECOND))
    num_tokens = round(options.seconds * TOKENS_PER_SECOND)
    compare_losses(lengths, num_tokens, options.turns).save(options.output_dir, facts)
    compare_searches(lengths, options.blank_bias, options.turns).save(options.output_dir, facts)
    return 0


# ---- losses


def compare_losses(lengths: Tensor, num_tokens: int, turns: int) -> Results:
    """Time the losses in turns; measure the memory of each in a process of its own."""
    table = Results("tdt_loss", LOSS_COLUMNS, bars="CPU ms")
    tasks = enter(
        {name: partial(make_loss, name, lengths, num_tokens) for name in (OURS, TRANSFORMERS, RNNT, TORCHAUDIO)}
    )
    times = race(tasks, turns=turns)
    for name, task in tasks.items():
        memory = in_fresh_process(loss_memory, name, lengths, num_tokens)
        milliseconds = 1000 * times[name].cpu_seconds
        table.row(name, task(), milliseconds, times[name].cpu_seconds / times[OURS].cpu_seconds, memory / MEGABYTE)
    return table


def make_loss(name: str, lengths: Tensor, num_tokens: int) -> Callable[[], float]:
    """Return a function that computes a loss of a batch and its gradient, and returns the mean over utterances."""
    torch.manual_seed(0)
    shape = len(lengths), int(lengths.max()), num_tokens + 1, VOCAB_SIZE + len(DURATIONS)
    logits = torch.randn(shape).requires_grad_()
    tokens = torch.randint(3, VOCAB_SIZE, (len(lengths), num_tokens))
    token_lengths = torch.full((len(lengths),), num_tokens)

    def ours() -> Tensor:
        return transducer_loss(logits, tokens, lengths, token_lengths, DURATIONS).mean()

    def without_durations() -> Tensor:
        return transducer_loss(logits[..., :VOCAB_SIZE], tokens, lengths, token_lengths).mean()

    def torchaudio() -> Tensor:
        arguments = logits[..., :VOCAB_SIZE].contiguous(), tokens.int(), lengths.int(), token_lengths.int()
        loss: Tensor = theirs(*arguments, blank=0, reduction="mean")
        return loss

    def transformers() -> Tensor:
        arguments = logits[..., :VOCAB_SIZE], logits[..., VOCAB_SIZE:], tokens, lengths, token_lengths
        loss: Tensor = theirs(*arguments, blank_token_id=0, durations=DURATIONS, reduction="none").mean()
        return loss

    if name == TRANSFORMERS:
        theirs = importlib.import_module("transformers.loss.loss_tdt").tdt_loss
    if name == TORCHAUDIO:
        theirs = importlib.import_module("torchaudio.functional").rnnt_loss
    compute = {OURS: ours, RNNT: without_durations, TRANSFORMERS: transformers, TORCHAUDIO: torchaudio}[name]

    def run() -> float:
        logits.grad = None
        loss = compute()
        loss.backward()
        return loss.item()

    return run


def loss_memory(name: str, lengths: Tensor, num_tokens: int) -> float:
    """Return the growth of resident memory, in bytes, during a loss and its backward pass, without the logits."""
    return_memory()
    torch.set_num_threads(1)
    make_loss(name, lengths[:1].clamp(max=4), 2)()  # loads the libraries that the loss needs
    run = make_loss(name, lengths, num_tokens)
    before = peak_memory_reset()
    run()
    return peak_memory() - before


# ---- searches


def compare_searches(lengths: Tensor, blank_biases: Sequence[float], turns: int) -> Results:
    """Time the greedy searches in turns, for each bias of the blank."""
    table = Results("transducer_greedy", SEARCH_COLUMNS, bars="CPU ms", group_by=("blank bias",))
    max_symbols = default_settings("decode", "transducer_greedy")["max_symbols"]
    for bias in blank_biases:
        head = random_head(bias)
        encoder_out = torch.randn(len(lengths), int(lengths.max()), OUTPUT_DIM)
        makers: dict[str, Callable[[], Search]] = {
            OURS: partial(our_search, head),
            TRANSFORMERS: partial(_peer, "parakeet_tdt", head),
            NEMO: partial(_peer, "nemo_transducer", head, max_symbols),
        }
        searches = enter(makers)
        with torch.inference_mode():
            tokens = {name: search(encoder_out, lengths) for name, search in searches.items()}
            tasks = {name: partial(search, encoder_out, lengths) for name, search in searches.items()}
            times = {name: turn.cpu_seconds for name, turn in race(tasks, turns=turns).items()}
            visited = num_visited(head, encoder_out, lengths, max_symbols)
        num_tokens = sum(map(len, tokens[OURS]))
        rates = num_tokens / (int(lengths.sum()) / FRAMES_PER_SECOND), visited / num_tokens
        for name, rows in tokens.items():
            num_differing = sum(row != ours for row, ours in zip(rows, tokens[OURS], strict=True))
            differing = f"{num_differing} of {len(lengths)}"
            table.row(bias, *rates, name, differing, 1000 * times[name], times[name] / times[OURS])
    return table


def random_head(blank_bias: float) -> Transducer:
    """Make a head in which frames and tokens determine the logits, and the blank's bias the rate of tokens."""
    torch.manual_seed(0)
    settings = default_settings("head", "tdt") | SHAPE
    settings["predictor"] = default_settings("head/predictor", "lstm") | PREDICTOR
    head: Transducer = component("head", settings)(OUTPUT_DIM, {}, VOCAB_SIZE).eval()
    with torch.no_grad():
        for weight in head.parameters():
            if weight.dim() > 1:
                weight.normal_(std=1.5 / weight.shape[1] ** 0.5)
        cast(LSTMPredictor, head.predictor).embedding.weight[0] = 0.0
        head.joiner.output.bias[0] += blank_bias
        head.joiner.output.bias[VOCAB_SIZE] -= ZERO_DURATION_BIAS
    return head


def our_search(head: Transducer) -> Search:
    """Make asr's greedy search."""
    decoder = component("decode", default_settings("decode", "transducer_greedy"))(head, Char(), str)

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        return [list(best.tokens) for best, *_ in decoder.search(decoder.evidence(Encoded(encoder_out, lengths, {})))]

    return decode


def _peer(module: str, *arguments: Any) -> Search:
    search: Search = importlib.import_module(f"benchmarks.peers.{module}").make(*arguments)
    return search


def num_visited(head: Transducer, encoder_out: Tensor, lengths: Tensor, max_symbols: int) -> int:
    """Count the frames at which the greedy path evaluates the joiner, utterance by utterance, step by step."""
    frames, visited = head.joiner.of_frames(encoder_out), 0
    for rows, length in zip(frames, lengths.tolist(), strict=True):
        out, state = head.predictor.step(torch.tensor([0]), head.predictor.initial_state(1))
        frame, last, symbols = 0, -1, 0
        while frame < length:
            visited += frame != last
            last, symbols = frame, symbols + 1 if frame == last else 1
            logits = head.joiner(rows[frame], head.joiner.of_tokens(out)[0])
            token = int(logits[:VOCAB_SIZE].argmax())
            duration = head.durations[int(logits[VOCAB_SIZE:].argmax())]
            if token:
                out, state = head.predictor.step(torch.tensor([token]), state)
            frame += max(duration, 1) if token == 0 or symbols == max_symbols else duration
    return visited


if __name__ == "__main__":
    run_command(main)
