"""python -m benchmarks.decoding: greedy decoding and beam searches, ours and others', on the same log_probs.

All take turns on one thread; a search is named by its beam. torchaudio's is flashlight's, in C++, here only for tokens
of one character; pyctcdecode is Python, as ours is, and needs numpy 1.
"""

import argparse
import gc
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from asr import ngram
from asr.checkpoint.load import load_recognizer
from asr.cli.command import run_command
from asr.decode.beam import Beam
from asr.decode.greedy import Greedy
from asr.decode.lexicon import read_lexicon
from asr.errors import InputError
from asr.evaluation.tuning import Heard, hear, search_weights
from asr.evaluation.word_errors import count_errors, total
from asr.interfaces import Hypothesis
from asr.language_model.kenlm import without_progress
from asr.recognition.recognizer import INFERENCE, Recognizer
from asr.system.settings import default_settings
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import add_model, read_utterances
from benchmarks.race import enter, race
from benchmarks.results import Results, fixed, share

TEXTS = "data/mini/train.jsonl"
CONF = default_settings("decode", "beam")
THEIR_PRUNING = {"beam_threshold": 10.0, "token_threshold": -5.0}  # pyctcdecode's defaults
NET = "net and reading"
COLUMNS: dict[str, Callable[[Any], str]] = {
    "decoder": str,
    "LM weight": fixed(2),
    "word score": fixed(2),
    "WER": lambda value: f"{value:.2%}",
    "utterances/s": fixed(1),
    "s per s": fixed(5),
    "x pyctcdecode": fixed(2),
    "of the net": share,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each decoder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    add_model(parser)
    parser.add_argument("--lm", metavar="FILE", help=f"ARPA over words; the lexicon is its words (trigrams of {TEXTS})")
    parser.add_argument("--dev", metavar="MANIFEST", help="where each decoder's weights are found (else conf's are)")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 16, 50], metavar="N", help="others get the last")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recognizer = load_recognizer(given.model)
    facts = about(given)
    with tempfile.TemporaryDirectory() as folder:
        lm = given.lm or make_trigrams(folder)
        dev = listen(recognizer, [given.dev]) if given.dev else []
        decoders = make_decoders(recognizer, lm, given.beams, dev)
        compare(recognizer, decoders, given.audio, given.turns).keep(given.output_dir, facts)
    return 0


def make_trigrams(folder: str) -> str:
    """Make a language model of the mini corpus's training texts."""
    path = f"{folder}/lm.arpa"
    ngram.main([TEXTS, "--order", "3", "-o", path])
    return path


def listen(recognizer: Recognizer, paths: Iterable[str]) -> list[Heard]:
    """Run the net over recordings."""
    return hear(recognizer, list(read_utterances(paths)), INFERENCE, lambda seconds: None)[0]


def compare(recognizer: Recognizer, decoders: dict[str, Any], audio: Sequence[str], turns: int) -> Results:
    """Let the decoders take turns, and the net whose log_probs they have."""
    heard = listen(recognizer, audio)
    seconds = sum(one.utterance.duration for one in heard)
    print(f"{len(heard)} utterances, {seconds:.0f} s\n")
    wers = {name: wer(recognizer, heard, decode_all(recognizer, decode, heard)) for name, decode in decoders.items()}
    gc.freeze()  # what one decoder keeps must not cost another one time
    contenders: dict[str, Callable[[], object]] = {NET: lambda: listen(recognizer, audio)}
    contenders |= {name: partial(decode_all, recognizer, decode, heard) for name, decode in decoders.items()}
    taken = {name: turn.cpu_seconds for name, turn in race(contenders, turns=turns, warm_up=0).items()}
    table = Results("decoding", COLUMNS, bars="utterances/s")
    theirs = next((taken[name] for name in taken if name.startswith("pyctcdecode")), None)
    for name, decode in decoders.items():
        weighed = " LM" in name
        weights = (decode.fusion.lm_weight, decode.fusion.word_score) if weighed else (None, None)
        figures = len(heard) / taken[name], taken[name] / seconds, theirs and theirs / taken[name]
        table.row(name, *weights, wers[name], *figures, taken[name] / taken[NET])
    table.row(NET, None, None, None, len(heard) / taken[NET], taken[NET] / seconds, None, None)
    return table


def decode_all(recognizer: Recognizer, decode: Any, heard: Sequence[Heard]) -> list[str]:
    """Decode recordings to texts."""
    recognizer.decode = decode
    return [
        " ".join(text for _, log_probs in one.segments for text in decode_one(recognizer, log_probs)) for one in heard
    ]


def decode_one(recognizer: Recognizer, log_probs: Tensor) -> list[str]:
    """Decode (T', V) to one text."""
    return recognizer.hypotheses(log_probs[None], torch.tensor([len(log_probs)]))


def wer(recognizer: Recognizer, heard: Sequence[Heard], texts: Sequence[str]) -> float:
    """Score texts."""
    pairs = zip(heard, texts, strict=True)
    return total(count_errors(recognizer.model.normalize(one.utterance.text), text) for one, text in pairs).rate


def make_decoders(recognizer: Recognizer, lm: str, beams: Sequence[int], dev: Sequence[Heard]) -> dict[str, Any]:
    """Make the rows of the table; a language model's weights are found on the dev set, if there is one."""
    decoders: dict[str, Any] = {"greedy": Greedy(recognizer.model.tokenizer, recognizer.model.normalize)}
    decoders |= {f"asr {size}": ours(recognizer, beam_size=size) for size in beams}
    for family in families(recognizer, lm, beams):
        made: dict[str, Any] = {**enter(family, (InputError,))}
        if made and dev:
            middling = recognizer.decode = list(made.values())[(len(made) - 1) // 2]
            weights = search_weights(recognizer, middling, dev, lambda weights, counts: None)
            for decode in made.values():
                decode.fusion.lm_weight, decode.fusion.word_score = weights
        decoders |= made
    return decoders


def families(recognizer: Recognizer, lm: str, beams: Sequence[int]) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield the makers of decoders that have their weights in common."""
    search, last = partial(ours, recognizer, lm=lm), beams[-1]
    yield {
        **{f"asr {size} + LM": partial(search, beam_size=size) for size in beams},
        f"asr {last} + LM, pyctcdecode's pruning": partial(search, beam_size=last, **THEIR_PRUNING),
    }
    yield {f"asr {size} + LM + lexicon": partial(search, beam_size=size, lexicon=lm) for size in beams}
    yield {
        f"torchaudio {last} + LM + lexicon, {number} tokens": partial(Torchaudio, recognizer, lm, last, number)
        for number in (40, 5)
    }
    yield {
        f"pyctcdecode {last} + LM": partial(Pyctcdecode, recognizer, lm, last, THEIR_PRUNING),
        f"pyctcdecode {last} + LM, asr's pruning": partial(Pyctcdecode, recognizer, lm, last, CONF),
    }


def ours(recognizer: Recognizer, **settings: Any) -> Beam:
    """Make our search, of conf's settings but for these."""
    settings = {**CONF, **settings}
    del settings["name"]
    return Beam(recognizer.model.tokenizer, recognizer.model.normalize, **settings)


def first_weights() -> SimpleNamespace:
    """The weights where a search begins."""
    return SimpleNamespace(lm_weight=CONF["lm_weight"], word_score=CONF["word_score"])


class Torchaudio:
    """torchaudio's decoder; its words end with a space, the last one too, so a frame is added that is one."""

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, tokens_per_frame: int) -> None:
        from torchaudio.models.decoder import ctc_decoder

        tokens = ["-", *(piece.replace(" ", "|") for piece in recognizer.model.tokenizer.pieces[1:])]
        if any(len(token) != 1 for token in tokens):
            raise InputError("it is only called with tokens of one character here")
        self.fusion = first_weights()
        self._space = tokens.index("|")
        self._folder = tempfile.TemporaryDirectory()  # the decoder is made when its weights are known
        lexicon = Path(self._folder.name) / "lexicon.txt"
        words = [word for word in read_lexicon(lm) if set(word).issubset(tokens)]
        lexicon.write_text("".join(f"{word} {' '.join(word)} |\n" for word in words), encoding="utf-8")
        self._make = partial(
            ctc_decoder,
            lexicon=str(lexicon),
            tokens=tokens,
            lm=lm,
            beam_size=beam_size,
            beam_size_token=tokens_per_frame,
            beam_threshold=CONF["beam_threshold"],
        )
        self._made: tuple[float, float] | None = None

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode one utterance, (1, T', V)."""
        weights = self.fusion.lm_weight, self.fusion.word_score
        if weights != self._made:
            with without_progress():
                self._decode = self._make(lm_weight=weights[0] * math.log(10), word_score=weights[1])
            self._made = weights
        space = torch.full_like(log_probs[:, :1], -1e4)
        space[..., self._space] = 0.0
        [[best]] = self._decode(torch.cat([log_probs, space], dim=1))
        return [[Hypothesis(best.tokens.tolist(), best.score)]]


class Pyctcdecode:
    """pyctcdecode; the words it knows are the language model's, and all others cost ten, in the model's logarithm."""

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, pruning: dict[str, Any]) -> None:
        from pyctcdecode import build_ctcdecoder  # type: ignore[import-not-found]

        self.fusion = first_weights()
        self._tokenizer = recognizer.model.tokenizer
        with without_progress():
            self._decoder = build_ctcdecoder(list(recognizer.model.tokenizer.pieces), lm, unigrams=read_lexicon(lm))
        self._decode = partial(
            self._decoder.decode_beams,
            beam_width=beam_size,
            beam_prune_logp=-pruning["beam_threshold"],
            token_min_logp=pruning["token_threshold"],
        )

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode one utterance, (1, T', V)."""
        self._decoder.reset_params(alpha=self.fusion.lm_weight, beta=self.fusion.word_score)
        best = self._decode(log_probs[0].numpy())[0]
        return [[Hypothesis(self._tokenizer.encode(best[0]), best[-1])]]


if __name__ == "__main__":
    run_command(main)
