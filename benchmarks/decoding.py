"""python -m benchmarks.decoding: greedy decoding and beam searches of asr and other toolkits, on the same log_probs.

The decoders take turns on one thread. The number in the name of a search is its beam size. torchaudio uses flashlight,
in C++, and runs here only with tokens of one character; pyctcdecode is written in Python, as asr is, and requires
numpy 1.
"""

import argparse
import gc
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asr import ngram
from asr.apps.language_models.selection import fewest_errors
from asr.apps.language_models.tuning import EncodedUtterance, Values, encode, search_values
from asr.base.settings.conf import default_settings
from asr.base.text.word_errors import count_errors, total
from asr.components.decode.beam import Beam
from asr.components.decode.fusion.lexicon import read_lexicon
from asr.components.decode.fusion.shallow_fusion import LM_WEIGHTS, WORD_INSERTION_BONUSES
from asr.components.decode.greedy import Greedy
from asr.core.build import build_decoder, build_features, build_model, build_tokenizer, component
from asr.core.checkpoint.load import load_recognizer
from asr.core.cli.command import run_command
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.long_form import Segment
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Encoded, Hypothesis, Tunable
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import add_model, read_utterances
from benchmarks.race import enter, race
from benchmarks.results import Columns, Results, fixed, share
from benchmarks.training_speech import composed

TEXTS = "data/mini/train.jsonl"
CONF = default_settings("decode", "beam")
PYCTCDECODE_PRUNING = {"beam_threshold": 10.0, "token_threshold": -5.0}  # pyctcdecode's defaults
TUNABLE = {  # the weights that are tuned for each decoder with a language model
    "lm_weight": Tunable(CONF["fusion"]["lm_weight"], LM_WEIGHTS),
    "word_insertion_bonus": Tunable(CONF["fusion"]["word_insertion_bonus"], WORD_INSERTION_BONUSES),
}
NET = "network and reading"
BATCHED_HEADS = {  # their decoders, and a bias of the blank which gives about as many tokens as speech has characters
    "ctc": ("greedy", 0.0),
    "transducer": ("transducer_greedy", 0.8),
    "tdt": ("transducer_greedy", 0.2),
}
BATCH_SIZES = (1, 16)
BATCH_COLUMNS: Columns = {
    "head": str,
    "recordings at a time": str,
    "tokens per s": fixed(1),
    "decoding s/audio s": fixed(5),
    "x one at a time": fixed(2),
    "of transcribe": share,
}
COLUMNS: Columns = {
    "decoder": str,
    "LM weight": fixed(2),
    "word bonus": fixed(2),
    "WER": lambda value: f"{value:.2%}",
    "utterances/s": fixed(1),
    "decoding s/audio s": fixed(5),
    "x pyctcdecode": fixed(2),
    "of the net": share,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row per decoder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--lm", metavar="FILE", help=f"ARPA language model, whose words are the lexicon (default: trigrams of {TEXTS})"
    )
    parser.add_argument("--spelling", metavar="FILE", help="spelling model of unknown words (asr.ngram --spelling)")
    parser.add_argument(
        "--dev", metavar="MANIFEST", help="dev set for tuning each decoder's weights (default: the weights in conf)"
    )
    parser.add_argument(
        "--beams",
        type=int,
        nargs="+",
        default=[4, 16, 50],
        metavar="N",
        help="beam sizes of asr; other toolkits use the last of them",
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    recognizer = load_recognizer(options.model)
    facts = about(options)
    with tempfile.TemporaryDirectory() as folder:
        lm = options.lm or make_trigrams(folder)
        dev = encode_recordings(recognizer, [options.dev]) if options.dev else []
        decoders = make_decoders(recognizer, lm, options.spelling, options.beams, dev)
        compare(recognizer, decoders, options.audio, options.turns).save(options.output_dir, facts)
    compare_batches(options.audio, options.turns).save(options.output_dir, facts)
    return 0


def compare_batches(audio: Sequence[str], turns: int) -> Results:
    """Time greedy decoding of one recording and of several at a time, with random weights."""
    table = Results("decoding_batches", BATCH_COLUMNS, bars="decoding s/audio s", group_by=("head",))
    utterances = list(read_utterances(audio))
    seconds = sum(utterance.duration for utterance in utterances)
    for head in BATCHED_HEADS:
        recognizer = random_recognizer(head, [utterance.text for utterance in utterances])

        def encoded(recognizer: Recognizer = recognizer) -> list[Tensor]:
            dev_set, _ = encode(recognizer, utterances, INFERENCE.unchecked, lambda seconds: None)
            return [out for each in dev_set for _, out in each.segments]

        rows = encoded()
        num_tokens = sum(len(found[0].tokens) for found in recognizer.decoded(rows) if not isinstance(found, Exception))

        def decode(size: int, recognizer: Recognizer = recognizer, rows: Sequence[Tensor] = rows) -> None:
            for start in range(0, len(rows), size):
                recognizer.decoded(rows[start : start + size])

        contenders: dict[str, Callable[[], object]] = {str(size): partial(decode, size) for size in BATCH_SIZES}
        turn = race(contenders | {NET: encoded}, turns=turns, warm_up=0)
        times = {name: each.cpu_seconds for name, each in turn.items()}
        for size in contenders:
            share_of_all = times[size] / (times[size] + times[NET])
            gain = times[str(BATCH_SIZES[0])] / times[size]
            table.row(head, size, num_tokens / seconds, times[size] / seconds, gain, share_of_all)
    return table


def random_recognizer(head: str, texts: Iterable[str]) -> Recognizer:
    """Make a recogniser with random weights, whose blank has a bias, and with greedy decoding."""
    torch.manual_seed(0)
    decode, blank_bias = BATCHED_HEADS[head]
    settings = composed(["encoder=conformer_s", f"head={head}", f"decode={decode}", "tokenizer=char"])
    tokenizer = build_tokenizer(settings.components)
    tokenizer.fit(texts)
    features = build_features(settings.components)
    features.normalize.fit([torch.tensor([[-1.0], [1.0]]).expand(2, features.dim)])
    model = build_model(settings.components, tokenizer, features).eval()
    for layer in model.head.modules():  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear) and layer.out_features >= tokenizer.vocab_size and layer.bias is not None:
            layer.bias.data[BLANK_ID] += blank_bias
    return Recognizer(model, build_decoder(settings.components, model), UNCALIBRATED)


def make_trigrams(folder: str) -> str:
    """Make a trigram language model of the mini corpus's training texts; return its path."""
    path = f"{folder}/lm.arpa"
    ngram.main([TEXTS, "--order", "3", "-o", path])
    return path


class StoredLogProbs:
    """A head whose encoder_out is already log_probs, so that the decoders' time excludes the head."""

    @property
    def frame_head(self) -> "StoredLogProbs":
        """This head itself."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Return log_probs (B, T', V) unchanged."""
        return encoder_out


class Contender(NamedTuple):
    """A decoder, and the values of its tunable weights."""

    decoder: Any
    values: Values


def encode_recordings(recognizer: Recognizer, paths: Iterable[str]) -> list[EncodedUtterance]:
    """Run the network on recordings; the result has log_probs in place of encoder_out."""
    encodings, _ = encode(recognizer, list(read_utterances(paths)), INFERENCE, lambda seconds: None)
    return [
        EncodedUtterance(
            encoded.utterance, [Segment(start, recognizer.log_probs(out)) for start, out in encoded.segments]
        )
        for encoded in encodings
    ]


def compare(recognizer: Recognizer, decoders: dict[str, Contender], audio: Sequence[str], turns: int) -> Results:
    """Time the decoders and the network that computes their log_probs; they take turns."""
    test_set = encode_recordings(recognizer, audio)
    seconds = sum(encoded.utterance.duration for encoded in test_set)
    print(f"{len(test_set)} utterances, {seconds:.0f} s\n")
    texts = {name: decode_all(recognizer, decoder, test_set) for name, decoder in decoders.items()}
    gc.freeze()  # the objects of one decoder must not slow down garbage collection in another
    contenders: dict[str, Callable[[], object]] = {NET: lambda: encode_recordings(recognizer, audio)}
    contenders |= {name: partial(decode_all, recognizer, decoder, test_set) for name, decoder in decoders.items()}
    durations = {name: turn.cpu_seconds for name, turn in race(contenders, turns=turns, warm_up=0).items()}
    table = Results("decoding", COLUMNS, bars="utterances/s")
    pyctcdecode = next((durations[name] for name in durations if name.startswith("pyctcdecode")), None)
    for name, (_, values) in decoders.items():
        weights = (values.get(key) for key in TUNABLE)
        ratio = pyctcdecode and pyctcdecode / durations[name]
        figures = len(test_set) / durations[name], durations[name] / seconds, ratio, durations[name] / durations[NET]
        table.row(name, *weights, wer(recognizer, test_set, texts[name]), *figures)
    network_speed = len(test_set) / durations[NET], durations[NET] / seconds
    table.row(NET, None, None, None, *network_speed, None, None)
    return table


def decode_all(recognizer: Recognizer, decoder: Contender, test_set: Sequence[EncodedUtterance]) -> list[str]:
    """Return the texts of all recordings."""
    return [
        " ".join(decode_one(recognizer, decoder, log_probs) for _, log_probs in encoded.segments)
        for encoded in test_set
    ]


def decode_one(recognizer: Recognizer, decoder: Contender, log_probs: Tensor) -> str:
    """Return the text of log_probs (T', V)."""
    evidence = decoder.decoder.evidence(Encoded(log_probs[None], torch.tensor([len(log_probs)]), {}))
    [[best, *_]] = decoder.decoder.search(evidence, **decoder.values)
    return recognizer.text(best)


def wer(recognizer: Recognizer, test_set: Sequence[EncodedUtterance], texts: Sequence[str]) -> float:
    """Return the WER of texts."""
    references = (recognizer.model.normalize(encoded.utterance.text) for encoded in test_set)
    return total(map(count_errors, references, texts)).rate


def make_decoders(
    recognizer: Recognizer, lm: str, spelling: str | None, beams: Sequence[int], dev: Sequence[EncodedUtterance]
) -> dict[str, Contender]:
    """Make the decoders of the table; the weights of language models are tuned on `dev`, unless it is empty."""
    greedy = Greedy(StoredLogProbs(), recognizer.model.tokenizer, recognizer.model.normalize)  # type: ignore[arg-type]
    decoders = {"greedy": Contender(greedy, {})}
    decoders |= {f"asr {size}": Contender(ours(recognizer, beam_size=size), {}) for size in beams}
    for family in families(recognizer, lm, spelling, beams):
        family_decoders: dict[str, Any] = {**enter(family, (InputError,))}
        values: Values = {name: tunable.value for name, tunable in TUNABLE.items()}
        if family_decoders and dev:
            median_beam = list(family_decoders.values())[(len(family_decoders) - 1) // 2]
            tuned = Recognizer(recognizer.model, median_beam, recognizer.calibration)
            search = search_values(tuned, dev, lambda values, counts: None)
            values = search.values[fewest_errors(search.trials)]
        decoders |= {name: Contender(decoder, values) for name, decoder in family_decoders.items()}
    return decoders


def families(
    recognizer: Recognizer, lm: str, spelling: str | None, beams: Sequence[int]
) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield groups of makers of decoders; the decoders of a group share their weights."""
    search, last = partial(ours, recognizer, lm=lm), beams[-1]
    yield {
        **{f"asr {size} + LM": partial(search, beam_size=size) for size in beams},
        f"asr {last} + LM, pyctcdecode's pruning": partial(search, beam_size=last, **PYCTCDECODE_PRUNING),
    }
    if spelling is not None:
        yield {f"asr {size} + LM + spelling": partial(search, beam_size=size, spelling=spelling) for size in beams}
    yield {f"asr {size} + LM + lexicon": partial(search, beam_size=size, lexicon=lm) for size in beams}
    yield {
        f"torchaudio {last} + LM + lexicon, {number} tokens": partial(Torchaudio, recognizer, lm, last, number)
        for number in (40, 5)
    }
    yield {
        f"pyctcdecode {last} + LM": partial(Pyctcdecode, recognizer, lm, last, PYCTCDECODE_PRUNING),
        f"pyctcdecode {last} + LM, asr's pruning": partial(Pyctcdecode, recognizer, lm, last, CONF),
    }


def ours(recognizer: Recognizer, **settings: Any) -> Beam:
    """Make asr's beam search with conf's settings, overridden by `settings`."""
    fusion_settings = {key: value for key, value in settings.items() if key in CONF["fusion"]}
    search_settings = {key: value for key, value in settings.items() if key not in fusion_settings}
    make = component("decode", {**CONF, **search_settings, "fusion": CONF["fusion"] | fusion_settings})
    search: Beam = make(StoredLogProbs(), recognizer.model.tokenizer, recognizer.model.normalize)
    return search


@contextmanager
def without_progress() -> Iterator[None]:
    """Discard KenLM's progress bar, which torchaudio's and pyctcdecode's decoders write to standard error."""
    sys.stderr.flush()
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


class Torchaudio:
    """torchaudio's decoder. Every word must end with a space, so a frame with a space is appended to the log_probs."""

    tunable = TUNABLE

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, tokens_per_frame: int) -> None:
        import_module("flashlight.lib.text")  # not in Python 3.13 and later; torchaudio raises no ImportError
        from torchaudio.models.decoder import ctc_decoder

        tokens = ["-", *(piece.replace(" ", "|") for piece in recognizer.model.tokenizer.pieces[1:])]
        if any(len(token) != 1 for token in tokens):
            raise InputError(
                "torchaudio's decoder must have tokens of one character in this benchmark; the model has longer ones."
            )
        self._space = tokens.index("|")
        self._folder = tempfile.TemporaryDirectory()  # must exist until search() makes the decoder
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
        self._values: dict[str, float] | None = None

    def evidence(self, encoded: Encoded) -> Tensor:
        """Return log_probs (1, T', V) of one utterance unchanged."""
        return encoded.out

    def search(self, evidence: Tensor, **values: float) -> list[list[Hypothesis]]:
        """Return the best hypothesis of one utterance."""
        if values != self._values:
            weight, score = values["lm_weight"] * math.log(10), values["word_insertion_bonus"]
            with without_progress():
                self._decode = self._make(lm_weight=weight, word_score=score)
            self._values = values
        space = torch.full_like(evidence[:, :1], -1e4)
        space[..., self._space] = 0.0
        [[best]] = self._decode(torch.cat([evidence, space], dim=1))
        return [[Hypothesis(best.tokens.tolist(), best.score)]]


class Pyctcdecode:
    """pyctcdecode, which knows the words of the language model and penalises others by its default of 10 (log10)."""

    tunable = TUNABLE

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, pruning: dict[str, Any]) -> None:
        from pyctcdecode import build_ctcdecoder  # type: ignore[import-not-found]

        self._tokenizer = recognizer.model.tokenizer
        with without_progress():
            self._decoder = build_ctcdecoder(list(recognizer.model.tokenizer.pieces), lm, unigrams=read_lexicon(lm))
        self._decode = partial(
            self._decoder.decode_beams,
            beam_width=beam_size,
            beam_prune_logp=-pruning["beam_threshold"],
            token_min_logp=pruning["token_threshold"],
        )

    def evidence(self, encoded: Encoded) -> Tensor:
        """Return log_probs (1, T', V) of one utterance unchanged."""
        return encoded.out

    def search(self, evidence: Tensor, **values: float) -> list[list[Hypothesis]]:
        """Return the best hypothesis of one utterance."""
        self._decoder.reset_params(alpha=values["lm_weight"], beta=values["word_insertion_bonus"])
        best = self._decode(evidence[0].numpy())[0]
        return [[Hypothesis(self._tokenizer.encode(best[0]), best[-1])]]


if __name__ == "__main__":
    run_command(main)
