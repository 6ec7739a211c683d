"""python -m benchmarks.searches: searches of transducers and attention decoders, in asr and other toolkits.

The searches of a model use the same weights, encoder_out and batches, and take turns on one thread. An absent MODEL is
left out. These commands train the default models:

    python -m asr.train run_dir=runs/transducer head=transducer head/predictor=lstm num_threads=1
    python -m asr.train run_dir=runs/ctc_attention head=ctc_attention decode=joint_beam head.num_layers=2 num_threads=1
"""

import argparse
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.apps.language_models.tuning import encode
from asr.base.settings.conf import default_settings
from asr.base.text.word_errors import count_errors, total
from asr.core.build import component
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import Encoded, Hypothesis
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import AUDIO, read_utterances
from benchmarks.race import enter, race
from benchmarks.results import Columns, Results, fixed

MODELS = ("runs/transducer", "runs/ctc_attention")
BATCH = 8  # utterances of similar length
BEAMS = (4, 10)

Batch = tuple[Tensor, Tensor]  # encoder_out (B, T', D), lengths (B,)
Decode = Callable[[Tensor, Tensor], list[list[int]]]
COLUMNS: Columns = {
    "model": str,
    "search": str,
    "WER": lambda value: f"{value:.2%}",
    "texts that differ from ours": str,
    "utterances/s": fixed(1),
    "search s/audio s": fixed(5),
    "x ours": fixed(2),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per model and search."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searches", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", default=MODELS, help=f"models (default: {' '.join(MODELS)})"
    )
    parser.add_argument(
        "--audio", metavar="MANIFEST", nargs="+", default=[AUDIO], help=f"manifests with texts (default: {AUDIO})"
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    utterances = list(read_utterances(options.audio))
    table = Results("searches", COLUMNS, bars="utterances/s")
    for model in options.models:
        if Path(model).exists():
            compare(table, model, load_recognizer(model), utterances, options.turns)
        else:
            print(f"{model}: left out, because it does not exist; --help shows how to train it", flush=True)
    table.save(options.output_dir, about(options))
    return 0


def compare(table: Results, name: str, recognizer: Recognizer, utterances: Sequence[Utterance], turns: int) -> None:
    """Time a model's searches, which take turns; compare other toolkits' with the asr search that precedes them."""
    encodings, _ = encode(recognizer, utterances, INFERENCE, lambda seconds: None)
    encodings.sort(key=lambda encoded: encoded.utterance.duration)
    seconds = sum(encoded.utterance.duration for encoded in encodings)
    batches = list(make_batches([out for encoded in encodings for _, out in encoded.segments]))
    searches = enter(search_makers(name, recognizer))
    with torch.inference_mode():
        texts = {search: spell(recognizer, decode, batches) for search, decode in searches.items()}
        tasks = {search: partial(spell, recognizer, decode, batches) for search, decode in searches.items()}
        durations = {search: turn.cpu_seconds for search, turn in race(tasks, turns=turns, warm_up=0).items()}
    references = [recognizer.model.normalize(encoded.utterance.text) for encoded in encodings]
    ours = ""
    for search, hypotheses in texts.items():
        ours = search if search.startswith("asr") else ours
        wer = total(map(count_errors, references, hypotheses)).rate
        num_differing = sum(text != reference for text, reference in zip(hypotheses, texts[ours], strict=True))
        figures = len(encodings) / durations[search], durations[search] / seconds, durations[search] / durations[ours]
        table.row(name, search, wer, f"{num_differing} of {len(encodings)}", *figures)


def make_batches(outs: Sequence[Tensor]) -> Iterator[Batch]:
    """Yield padded batches of encoder outputs (T', D)."""
    for begin in range(0, len(outs), BATCH):
        batch = outs[begin : begin + BATCH]
        yield pad_sequence(list(batch), batch_first=True), torch.tensor([len(out) for out in batch])


def search_makers(name: str, recognizer: Recognizer) -> dict[str, Callable[[], Decode]]:
    """Return {name: maker} of the searches for the model's head; each asr search precedes those compared with it."""
    head: Any = recognizer.model.head
    if getattr(head, "durations", None) == ():
        max_symbols = default_settings("decode", "transducer_greedy")["max_symbols"]
        return {
            "asr greedy": partial(ours, recognizer, "transducer_greedy"),
            "NeMo greedy": partial(_peer, "nemo_transducer", head, max_symbols),
            "SpeechBrain greedy": partial(_peer, "speechbrain_transducer", head, max_symbols),
            **{f"asr beam {size}": partial(ours, recognizer, "transducer_beam", beam_size=size) for size in BEAMS},
        }
    if not hasattr(head, "token_decoder"):
        raise InputError(f"MODEL must have a transducer or an attention decoder; {name} has {type(head).__name__}.")
    settings = default_settings("decode", "joint_beam")
    arguments = settings["tokens_per_step"], settings["ctc_weight"]
    searches: dict[str, Callable[[], Decode]] = {}
    for size in reversed(BEAMS):
        searches[f"asr joint beam {size}"] = partial(ours, recognizer, "joint_beam", beam_size=size)
        searches[f"ESPnet joint beam {size}"] = partial(_peer, "espnet_joint", head, size, *arguments)
    return searches


def ours(recognizer: Recognizer, name: str, **settings: Any) -> Decode:
    """Build the asr search that conf/decode/<name>.yaml configures."""
    make = component("decode", default_settings("decode", name) | settings)
    decoder = make(recognizer.model.head, recognizer.model.tokenizer, recognizer.model.normalize)

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        hypotheses = decoder.search(decoder.evidence(Encoded(encoder_out, lengths, {})))
        return [list(best.tokens) for best, *_ in hypotheses]

    return decode


def _peer(module: str, *arguments: Any) -> Decode:
    decode: Decode = importlib.import_module(f"benchmarks.peers.{module}").make(*arguments)
    return decode


def spell(recognizer: Recognizer, decode: Decode, batches: Sequence[Batch]) -> list[str]:
    """Search all batches, and return the texts."""
    return [recognizer.text(Hypothesis(tokens, 0.0)) for batch in batches for tokens in decode(*batch)]


if __name__ == "__main__":
    run_command(main)
