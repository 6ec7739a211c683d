"""python -m benchmarks.gpu.questions: what recognition of a batch asks the device, counted on a CPU.

On a GPU each question is a wait for all pending operations, and each operation is one or a few kernel launches. Weights
are random, with a bias of the transducers' blank, so that they emit about as many tokens as speech has.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from asr.components.decode import greedy_paths, greedy_steps
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.recognizer import Recognizer
from benchmarks import results
from benchmarks.gpu.counts import Questions
from benchmarks.gpu.launches import listed
from benchmarks.gpu.recognition import random_recognizer
from benchmarks.machine import about
from benchmarks.results import Columns, Results, fixed

NAME = "gpu_questions"
BLANK_BIASES = {"ctc": 0.0, "transducer": 1.3, "tdt": 1.0}  # by head


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per head."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.questions", description=__doc__)
    parser.add_argument("--encoder", default="conformer_xs", help="default: %(default)s")
    parser.add_argument("--utterances", type=int, default=64, metavar="N", help="in the batch (default: 64)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of the longest (default: 4)")
    results.add_options(parser)
    options = parser.parse_args(arguments)
    columns: Columns = {
        "head": str,
        "tokens": fixed(0),
        "operations": fixed(0),
        "questions": fixed(0),
        "asked in": listed,
    }
    table = Results(NAME, columns, bars="questions")
    for head, bias in BLANK_BIASES.items():
        decoder = "transducer_greedy" if bias else "greedy"
        recognizer = random_recognizer(f"encoder={options.encoder}", f"head={head}", f"decode={decoder}")
        if bias:
            recognizer.model.head.joiner.output.bias.data[0] += bias  # type: ignore[attr-defined]
        tokens, questions = asked(recognizer, options.utterances, options.seconds)
        table.row(head, tokens, questions.num_operations, questions.counts.total(), questions.counts)
    table.save(options.output_dir, about(options))
    return 0


def asked(recognizer: Recognizer, number: int, seconds: float) -> tuple[int, Questions]:
    """Recognise a batch of noise; return the number of its tokens and what was asked after the features."""
    torch.manual_seed(0)
    rate, device = recognizer.model.features.sample_rate, lambda device: False
    durations = torch.linspace(0.7 * seconds, seconds, number).tolist()
    names = [str(index) for index in range(number)]
    utterances = [Utterance(name, duration, "", name) for name, duration in zip(names, durations, strict=True)]
    waveforms = {each.id: 0.1 * torch.randn(round(each.duration * rate)) for each in utterances}
    batches = replace(INFERENCE.batches, batch_seconds=number * seconds, max_utterances=number)
    inference = replace(INFERENCE, batches=batches, num_workers=1, check=anything)  # the features are made elsewhere
    count = 0
    search = recognizer.search

    def counted(*given: object, **values: object) -> object:
        nonlocal count
        hypotheses = search(*given, **values)  # type: ignore[arg-type]
        count += sum(len(best.tokens) for best, *_ in hypotheses)
        return hypotheses

    with (
        patch.object(recognizer, "search", counted),
        patch.object(greedy_paths, "answers_at_once", device, create=True),
        patch.object(greedy_steps, "answers_at_once", device, create=True),
        Questions() as questions,
    ):
        list(recognizer.recognize(utterances, inference, waveforms=waveforms))
    for place in [place for place in questions.counts if place.startswith("batch_plan.")]:
        del questions.counts[place]  # asks the CPU, also where there is a GPU
    return count, questions


def anything(waveform: Tensor, sample_rate: int) -> bool:
    """Return True: noise is recognised, too."""
    return True


if __name__ == "__main__":
    run_command(main)
