"""python -m benchmarks.decode MODEL MANIFEST --dev MANIFEST --lm LM: decoders' WER and time on the same log_probs."""

import argparse
import gc
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from asr.checkpoint import load_recognizer
from asr.decode.beam import Beam
from asr.decode.greedy import Greedy
from asr.decode.kenlm import without_progress
from asr.decode.lexicon import read_lexicon
from asr.interfaces import Hypothesis
from asr.manifest import read_manifest
from asr.recognizer import INFERENCE, Recognizer
from asr.score import count_errors, total
from asr.settings import default_settings
from asr.tuning import Heard, hear, search_weights

HEADER = (
    f"{'decoder':32} {'weight':>6} {'word':>6} {'WER %':>7} {'decoder s/s':>12} {'x greedy':>9} {'with net s/s':>13}"
)


def main() -> None:
    """Print a line for each decoder, and the net's own time above them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("manifest", metavar="MANIFEST", help="what is decoded and timed")
    parser.add_argument("--dev", metavar="MANIFEST", help="where each decoder's weights are found (else conf's are)")
    parser.add_argument("--lm", metavar="FILE", required=True, help="ARPA over words; the lexicon is its words")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 16, 64], metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of the whole table; the median is shown")
    parser.add_argument("--others", action="store_true", help="torchaudio's and pyctcdecode's, where installed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    recognizer = load_recognizer(given.model)
    began = time.perf_counter()
    heard = listen(recognizer, given.manifest)
    net_seconds = time.perf_counter() - began
    dev = listen(recognizer, given.dev) if given.dev else []
    decoders = dict(all_decoders(recognizer, given.lm, given.beams, dev, given.others))
    for decode in decoders.values():  # whatever is made when it is first used
        decode_all(recognizer, decode, heard[:1])
    gc.freeze()  # what one decoder keeps must not cost another one time
    passes = [
        {name: decode_all(recognizer, decode, heard) for name, decode in decoders.items()} for _ in range(given.repeats)
    ]
    audio_seconds = sum(one.utterance.duration for one in heard)
    net = net_seconds / audio_seconds
    print(f"{len(heard)} utterances, {audio_seconds:.0f} s; one thread; net and reading {net:.4f} s a second of audio")
    print(HEADER)
    for name, decode in decoders.items():
        seconds = statistics.median(one[name][1] for one in passes) / audio_seconds
        ratio = statistics.median(one[name][1] / one["greedy"][1] for one in passes)
        weighed = " LM" in name
        shown = f"{decode.fusion.lm_weight:6.2f} {decode.fusion.word_score:6.2f}" if weighed else f"{'':13}"
        wer = 100 * passes[0][name][0]
        print(f"{name:32} {shown} {wer:7.2f} {seconds:12.5f} {ratio:9.1f} {net + seconds:13.4f}")


def listen(recognizer: Recognizer, manifest: str) -> list[Heard]:
    """Run the net over a manifest."""
    return hear(recognizer, read_manifest(manifest), INFERENCE, lambda seconds: None)[0]


def decode_all(recognizer: Recognizer, decode: Any, heard: Sequence[Heard]) -> tuple[float, float]:
    """Decode utterances; return the WER, and the seconds it took."""
    recognizer.decode = decode
    began = time.perf_counter()
    texts = [
        [recognizer.hypotheses(log_probs[None], torch.tensor([len(log_probs)]))[0] for _, log_probs in one.segments]
        for one in heard
    ]
    seconds = time.perf_counter() - began
    pairs = zip(heard, texts, strict=True)
    counts = total(count_errors(recognizer.normalize(one.utterance.text), " ".join(text)) for one, text in pairs)
    return counts.rate, seconds


def all_decoders(
    recognizer: Recognizer, lm: str, beams: Sequence[int], dev: Sequence[Heard], others: bool
) -> Iterator[tuple[str, Any]]:
    """Make the lines of the table, with weights that were found on the dev set with a middling beam."""
    yield "greedy", Greedy(recognizer.tokenizer, recognizer.normalize)
    for beam_size in beams:
        yield f"beam {beam_size}", ours(recognizer, beam_size=beam_size)
    families: dict[str, Callable[[int], Any]] = {
        "beam {} + LM": lambda size: ours(recognizer, beam_size=size, lm=lm),
        "beam {} + LM + lexicon": lambda size: ours(recognizer, beam_size=size, lm=lm, lexicon=lm),
    }
    if others:
        families |= {
            "torchaudio {} + LM + lexicon": lambda size: Torchaudio(recognizer, lm, size, None),
            "torchaudio {} + LM, 5 tokens": lambda size: Torchaudio(recognizer, lm, size, 5),
            "pyctcdecode {} + LM": lambda size: Pyctcdecode(recognizer, lm, size),
        }
    middle = sorted(beams)[len(beams) // 2]
    for name, make in families.items():
        try:
            first = make(middle)
        except ImportError as error:
            print(f"{name.format('')}: left out, {error}", file=sys.stderr)
            continue
        if dev:
            recognizer.decode = first
            search_weights(recognizer, first, dev, lambda weights, counts: None)
        for beam_size in beams:
            decode = make(beam_size)
            decode.fusion.lm_weight, decode.fusion.word_score = first.fusion.lm_weight, first.fusion.word_score
            yield name.format(beam_size), decode


def ours(recognizer: Recognizer, **settings: Any) -> Beam:
    """Make our search, of conf's settings but for these."""
    settings = {**default_settings("decode", "beam"), **settings}
    del settings["name"]
    return Beam(recognizer.tokenizer, recognizer.normalize, **settings)


def first_weights() -> SimpleNamespace:
    """The weights where a search begins."""
    settings = default_settings("decode", "beam")
    return SimpleNamespace(lm_weight=settings["lm_weight"], word_score=settings["word_score"])


class Torchaudio:
    """torchaudio's decoder, flashlight's, for tokens of one character; its words end with a space, the last one too."""

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, tokens_per_frame: int | None) -> None:
        from torchaudio.models.decoder import ctc_decoder

        tokens = ["-", *(piece.replace(" ", "|") for piece in recognizer.tokenizer.pieces[1:])]
        if any(len(token) != 1 for token in tokens):
            raise ImportError("it is only called with tokens of one character here")
        self.fusion = first_weights()
        self._space = tokens.index("|")
        self._folder = tempfile.TemporaryDirectory()
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
            beam_threshold=default_settings("decode", "beam")["beam_threshold"],
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
    """pyctcdecode, with its own defaults of what is pruned; the words it knows are the language model's."""

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int) -> None:
        from pyctcdecode import build_ctcdecoder  # type: ignore[import-not-found]

        settings = default_settings("decode", "beam")
        self.fusion = first_weights()
        self._tokenizer = recognizer.tokenizer
        self._beam_size = beam_size
        labels = list(recognizer.tokenizer.pieces)
        unknown = settings["unknown_score"]
        with without_progress():
            self._decoder = build_ctcdecoder(labels, lm, unigrams=read_lexicon(lm), unk_score_offset=unknown)

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode one utterance, (1, T', V)."""
        self._decoder.reset_params(alpha=self.fusion.lm_weight, beta=self.fusion.word_score)
        best = self._decoder.decode_beams(log_probs[0].numpy(), beam_width=self._beam_size)[0]
        return [[Hypothesis(self._tokenizer.encode(best[0]), best[-1])]]


if __name__ == "__main__":
    main()
