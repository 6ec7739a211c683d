"""python -m benchmarks.decoding: greedy decoding and beam searches, ours and others', on the same log_probs.

All take turns on one thread; a search is named by its beam. torchaudio's is flashlight's, in C++, here only for tokens
of one character; pyctcdecode is Python, as ours is, and needs numpy 1.
"""

import argparse
import gc
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr import ngram
from asr.build import component, load_token_model
from asr.checkpoint.load import load_recognizer
from asr.cli.command import run_command
from asr.decode.beam import Beam
from asr.decode.fusion.lexicon import read_lexicon
from asr.decode.fusion.shallow_fusion import LM_WEIGHTS, WORD_INSERTION_BONUSES
from asr.decode.greedy import Greedy
from asr.decode.lm_rescoring import LMRescoring
from asr.errors import InputError
from asr.evaluation.selection import fewest_errors
from asr.evaluation.tuning import EncodedUtterance, Values, encode, search_values
from asr.evaluation.word_errors import count_errors, total
from asr.interfaces import Hypothesis, Tunable
from asr.language_model.kenlm import without_progress
from asr.recognition.inference import INFERENCE
from asr.recognition.long_form import Segment
from asr.recognition.recognizer import Recognizer
from asr.settings.conf import default_settings
from benchmarks import results
from benchmarks.machine import about
from benchmarks.model import add_model, read_utterances
from benchmarks.race import enter, race
from benchmarks.results import Results, fixed, share

TEXTS = "data/mini/train.jsonl"
CONF = default_settings("decode", "beam")
THEIR_PRUNING = {"beam_threshold": 10.0, "token_threshold": -5.0}  # pyctcdecode's defaults
TUNABLE = {  # of a language model, whoever searches with it
    "lm_weight": Tunable(CONF["fusion"]["lm_weight"], LM_WEIGHTS),
    "word_insertion_bonus": Tunable(CONF["fusion"]["word_insertion_bonus"], WORD_INSERTION_BONUSES),
}
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
    parser.add_argument("--spelling", metavar="FILE", help="of words that the LM does not know (asr.ngram --spelling)")
    parser.add_argument(
        "--language-model", metavar="MODEL", help="neural (asr.train_lm), to rescore what LM searches find"
    )
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
        decoders = make_decoders(recognizer, lm, given.spelling, given.beams, dev)
        if given.language_model:
            decoders |= rescorers(recognizer, given.language_model, lm, given.spelling, decoders)
        compare(recognizer, decoders, given.audio, given.turns).keep(given.output_dir, facts)
    return 0


def make_trigrams(folder: str) -> str:
    """Make a language model of the mini corpus's training texts."""
    path = f"{folder}/lm.arpa"
    ngram.main([TEXTS, "--order", "3", "-o", path])
    return path


class Written:
    """A head for which the encoder has written log_probs: so decoders are compared, and not what they decode."""

    @property
    def frame_head(self) -> "Written":
        """Itself."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """(B, T', V), as it is."""
        return encoder_out


class Contender(NamedTuple):
    """A decoder, and the values that it decodes with, of what it can tune."""

    decoder: Any
    values: Values


def listen(recognizer: Recognizer, paths: Iterable[str]) -> list[EncodedUtterance]:
    """Run the net over recordings; log_probs stand for encoder_out."""
    every, _ = encode(recognizer, list(read_utterances(paths)), INFERENCE, lambda seconds: None)
    return [
        EncodedUtterance(encoded.utterance, [Segment(at, recognizer.log_probs(out)) for at, out in encoded.segments])
        for encoded in every
    ]


def compare(recognizer: Recognizer, decoders: dict[str, Contender], audio: Sequence[str], turns: int) -> Results:
    """Let the decoders take turns, and the net whose log_probs they have."""
    test_set = listen(recognizer, audio)
    seconds = sum(encoded.utterance.duration for encoded in test_set)
    print(f"{len(test_set)} utterances, {seconds:.0f} s\n")
    texts = {name: decode_all(recognizer, decoder, test_set) for name, decoder in decoders.items()}
    gc.freeze()  # what one decoder keeps must not cost another one time
    contenders: dict[str, Callable[[], object]] = {NET: lambda: listen(recognizer, audio)}
    contenders |= {name: partial(decode_all, recognizer, decoder, test_set) for name, decoder in decoders.items()}
    taken = {name: turn.cpu_seconds for name, turn in race(contenders, turns=turns, warm_up=0).items()}
    table = Results("decoding", COLUMNS, bars="utterances/s")
    theirs = next((taken[name] for name in taken if name.startswith("pyctcdecode")), None)
    for name, (_, values) in decoders.items():
        weights = (values.get(tuned) for tuned in TUNABLE)
        figures = len(test_set) / taken[name], taken[name] / seconds, theirs and theirs / taken[name]
        table.row(name, *weights, wer(recognizer, test_set, texts[name]), *figures, taken[name] / taken[NET])
    table.row(NET, None, None, None, len(test_set) / taken[NET], taken[NET] / seconds, None, None)
    return table


def decode_all(recognizer: Recognizer, decoder: Contender, test_set: Sequence[EncodedUtterance]) -> list[str]:
    """Decode recordings to texts."""
    return [
        " ".join(decode_one(recognizer, decoder, log_probs) for _, log_probs in encoded.segments)
        for encoded in test_set
    ]


def decode_one(recognizer: Recognizer, decoder: Contender, log_probs: Tensor) -> str:
    """Decode (T', V) to one text."""
    evidence = decoder.decoder.evidence(log_probs[None], torch.tensor([len(log_probs)]))
    [[best, *_]] = decoder.decoder.search(evidence, **decoder.values)
    return recognizer.text(best)


def wer(recognizer: Recognizer, test_set: Sequence[EncodedUtterance], texts: Sequence[str]) -> float:
    """Score texts."""
    references = (recognizer.model.normalize(encoded.utterance.text) for encoded in test_set)
    return total(map(count_errors, references, texts)).rate


def make_decoders(
    recognizer: Recognizer, lm: str, spelling: str | None, beams: Sequence[int], dev: Sequence[EncodedUtterance]
) -> dict[str, Contender]:
    """Make the rows of the table; a language model's weights are found on the dev set, if there is one."""
    greedy = Greedy(Written(), recognizer.model.tokenizer, recognizer.model.normalize)  # type: ignore[arg-type]
    decoders = {"greedy": Contender(greedy, {})}
    decoders |= {f"asr {size}": Contender(ours(recognizer, beam_size=size), {}) for size in beams}
    for family in families(recognizer, lm, spelling, beams):
        made: dict[str, Any] = {**enter(family, (InputError,))}
        values: Values = {name: tunable.value for name, tunable in TUNABLE.items()}
        if made and dev:
            middling = list(made.values())[(len(made) - 1) // 2]
            searching = Recognizer(recognizer.model, middling, recognizer.calibration)
            search = search_values(searching, dev, lambda values, counts: None)
            values = search.values[fewest_errors(search.trials)]
        decoders |= {name: Contender(decoder, values) for name, decoder in made.items()}
    return decoders


def rescorers(
    recognizer: Recognizer, language_model: str, lm: str, spelling: str | None, decoders: Mapping[str, Contender]
) -> dict[str, Contender]:
    """Make the searches with the language model again, with a neural one that rescores all hypotheses of the beam."""
    model = load_token_model(language_model, recognizer.model.tokenizer, "--language-model")
    settings = default_settings("decode", "lm_rescoring")

    def rescorer(size: int) -> Any:
        first: Any = ours(recognizer, lm=lm, spelling=spelling, beam_size=size)
        return LMRescoring(
            Written(),  # type: ignore[arg-type]
            recognizer.model.tokenizer,
            recognizer.model.normalize,
            language_model=model,
            rescoring_weight=settings["rescoring_weight"],
            token_insertion_bonus=settings["token_insertion_bonus"],
            first=lambda *_: first,
        )

    end = " + LM + spelling" if spelling else " + LM"
    found = {
        name.removesuffix(end).removeprefix("asr "): values
        for name, (_, values) in decoders.items()
        if name.endswith(end)
    }
    return {
        f"asr {size}{end} + rescoring": Contender(rescorer(int(size)), values)
        for size, values in found.items()
        if size.isdecimal()
    }


def families(
    recognizer: Recognizer, lm: str, spelling: str | None, beams: Sequence[int]
) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield the makers of decoders that have their weights in common."""
    search, last = partial(ours, recognizer, lm=lm), beams[-1]
    yield {
        **{f"asr {size} + LM": partial(search, beam_size=size) for size in beams},
        f"asr {last} + LM, pyctcdecode's pruning": partial(search, beam_size=last, **THEIR_PRUNING),
    }
    if spelling is not None:
        yield {f"asr {size} + LM + spelling": partial(search, beam_size=size, spelling=spelling) for size in beams}
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
    of_fusion = {key: value for key, value in settings.items() if key in CONF["fusion"]}
    own = {key: value for key, value in settings.items() if key not in of_fusion}
    make = component("decode", {**CONF, **own, "fusion": CONF["fusion"] | of_fusion})
    search: Beam = make(Written(), recognizer.model.tokenizer, recognizer.model.normalize)
    return search


class Torchaudio:
    """torchaudio's decoder; its words end with a space, the last one too, so a frame is added that is one."""

    tunable = TUNABLE

    def __init__(self, recognizer: Recognizer, lm: str, beam_size: int, tokens_per_frame: int) -> None:
        from torchaudio.models.decoder import ctc_decoder

        tokens = ["-", *(piece.replace(" ", "|") for piece in recognizer.model.tokenizer.pieces[1:])]
        if any(len(token) != 1 for token in tokens):
            raise InputError("it is only called with tokens of one character here")
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
        self._made: dict[str, float] | None = None

    def evidence(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """One utterance's log_probs (1, T', V)."""
        return log_probs

    def search(self, evidence: Tensor, **values: float) -> list[list[Hypothesis]]:
        """Decode one utterance."""
        if values != self._made:
            weight, score = values["lm_weight"] * math.log(10), values["word_insertion_bonus"]
            with without_progress():
                self._decode = self._make(lm_weight=weight, word_score=score)
            self._made = values
        space = torch.full_like(evidence[:, :1], -1e4)
        space[..., self._space] = 0.0
        [[best]] = self._decode(torch.cat([evidence, space], dim=1))
        return [[Hypothesis(best.tokens.tolist(), best.score)]]


class Pyctcdecode:
    """pyctcdecode; the words it knows are the language model's, and all others cost ten, in the model's logarithm."""

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

    def evidence(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        """One utterance's log_probs (1, T', V)."""
        return log_probs

    def search(self, evidence: Tensor, **values: float) -> list[list[Hypothesis]]:
        """Decode one utterance."""
        self._decoder.reset_params(alpha=values["lm_weight"], beta=values["word_insertion_bonus"])
        best = self._decode(evidence[0].numpy())[0]
        return [[Hypothesis(self._tokenizer.encode(best[0]), best[-1])]]


if __name__ == "__main__":
    run_command(main)
