"""A plain reference implementation of the score that beam search maximises, and random settings for its tests."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from asr.base.settings.conf import default_settings
from asr.base.text.normalize import as_written
from asr.components.decode.beam import Beam
from asr.components.decode.fusion.shallow_fusion import ShallowFusion
from asr.errors import InputError
from tests.identity import IDENTITY
from tests.refusals import refused
from tests.test_ctc import collapse

SOME_WORDS = ["a", "b", "ab", "ba", "aa", "bb", "bab", "aba", "abb", "c", "ca", "cab"]
PHRASES = ["a", "b", "ab", "a b", "b a", "ab a", "a b a", "b a b", "bb a", "c"]
NUMBERS = ("lm_weight", "word_insertion_bonus", "unknown_score", "hotword_score")
WIDE = {
    "beam_size": 10**6,
    "beam_threshold": math.inf,
    "tokens_per_frame": 10**6,
    "token_threshold": -math.inf,
}  # so wide that the beam drops no hypothesis


class Pieces:
    """The part of a tokenizer's interface that decoders use."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = self.names = pieces
        self.vocab_size = len(pieces)

    def encode(self, text: str) -> list[int]:
        for character in text:
            if character not in "".join(self.pieces):
                raise InputError(f"{character!r} cannot be spelled")
        return []


def search_config(name: str, **settings: Any) -> dict[str, Any]:
    """Return the config of a search with these changes; keys of its section `fusion` are changed in that section."""
    config = default_settings("decode", name)
    of_fusion = {key: value for key, value in settings.items() if key in config["fusion"]}
    own = {key: value for key, value in settings.items() if key not in of_fusion}
    return {**config, **own, "fusion": config["fusion"] | of_fusion}


def search_settings(name: str, **settings: Any) -> dict[str, Any]:
    """Return the arguments of a search's constructor with these changes; invalid values are not refused."""
    config = search_config(name, **settings)
    fusion = {key: value for key, value in config["fusion"].items() if key != "name"}
    own = {key: value for key, value in config.items() if key != "name"}
    return {**own, "fusion": partial(ShallowFusion, **fusion)}


def beam(pieces: Sequence[str], **settings: Any) -> Beam:
    """Make a beam search with the settings of conf and these changes."""
    return Beam(IDENTITY, Pieces(pieces), as_written, **search_settings("beam", **settings))  # type: ignore[arg-type]


def write_lines(path: Path, lines: Iterable[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


class Trigrams:
    """A back-off language model with random scores, which are not normalised."""

    def __init__(self, words: Iterable[str], draw: random.Random) -> None:
        self.words = ["<unk>", "<s>", "</s>", *words]
        self.grams: dict[tuple[str, ...], float] = {(word,): draw.uniform(-3, -0.1) for word in self.words}
        firsts = [word for word in self.words if word != "</s>"]
        seconds = [word for word in self.words if word != "<s>"]
        pairs = [pair for pair in product(firsts, seconds) if "<unk>" not in pair and draw.random() < 0.5]
        triples = [(a, b, c) for (a, b), (other, c) in product(pairs, pairs) if b == other and draw.random() < 0.5]
        self.grams |= {gram: draw.uniform(-3, -0.1) for gram in [*pairs, *triples]}
        self.backoffs = {gram: draw.uniform(-1, 0) for gram in self.grams if len(gram) < 3 and gram[-1] != "</s>"}

    def write(self, path: Path) -> str:
        """Write the model as an ARPA file."""
        orders = [[gram for gram in self.grams if len(gram) == order] for order in (1, 2, 3)]
        lines = ["\\data\\", *(f"ngram {order}={len(grams)}" for order, grams in enumerate(orders, start=1))]
        for order, grams in enumerate(orders, start=1):
            lines += ["", f"\\{order}-grams:"]
            for gram in grams:
                backoff = f"\t{self.backoffs.get(gram, 0.0):.9f}" if order < 3 else ""
                lines.append(f"{self.grams[gram]:.9f}\t{' '.join(gram)}{backoff}")
        return write_lines(path, [*lines, "", "\\end\\"])

    def log_prob(self, context: Sequence[str], word: str) -> float:
        """Return log p(word | context), natural logarithm."""
        word = word if (word,) in self.grams else "<unk>"
        context = tuple(previous if (previous,) in self.grams else "<unk>" for previous in context)[-2:]
        backoff = 0.0
        while (*context, word) not in self.grams:
            backoff += self.backoffs.get(context, 0.0)
            context = context[1:]
        return (self.grams[*context, word] + backoff) * math.log(10)

    def sentence(self, words: Sequence[str]) -> float:
        """Return the log-probability of the words and the end of the sentence."""
        history = ["<s>", *words, "</s>"]
        return sum(self.log_prob(history[:number], history[number]) for number in range(1, len(history)))


@dataclass
class Fusion:
    """Shallow fusion that scores complete hypotheses."""

    pieces: Sequence[str]
    model: Trigrams | None = None
    lm_unit: str = "word"
    lexicon: Sequence[str] | None = None
    hotwords: Sequence[str] = ()
    numbers: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NUMBERS, 0.0))
    spelling: Trigrams | None = None  # a language model of characters

    def settings(self, folder: Path) -> dict[str, Any]:
        """Write the files of this fusion to a folder; return its settings."""
        return {
            **self.numbers,
            "lm_unit": self.lm_unit,
            "lm": self.model.write(folder / "lm.arpa") if self.model else None,
            "spelling": self.spelling.write(folder / "spelling.arpa") if self.spelling else None,
            "lexicon": write_lines(folder / "lexicon.txt", self.lexicon) if self.lexicon else None,
            "hotwords": write_lines(folder / "hotwords.txt", self.hotwords) if self.hotwords else None,
        }

    def score(self, tokens: Sequence[int]) -> float | None:
        """Return the score that fusion adds to a hypothesis; None if the lexicon forbids the hypothesis."""
        spelled = [self.pieces[token] for token in tokens]
        words = "".join(spelled).split()
        known = {word for phrase in self.hotwords for word in phrase.split()}
        if self.lexicon is not None and not known.union(self.lexicon).issuperset(words):
            return None
        score = self.numbers["hotword_score"] * self.covered(words)
        if self.model is not None:
            score += self.numbers["word_insertion_bonus"] * len(words)
        if self.model is not None and self.lm_unit == "token":
            names = [piece.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}") for piece in spelled]
            score += self.numbers["lm_weight"] * self.model.sentence(names)
        elif self.model is not None:
            score += self.numbers["lm_weight"] * self.model.sentence(words)
            unknown = [word for word in words if word not in known.union(self.model.words)]
            if self.lexicon is None and self.spelling is None:
                score += self.numbers["unknown_score"] * len(unknown)
            elif self.spelling is not None:
                score += self.numbers["lm_weight"] * sum(map(self.spelling.sentence, unknown)) * (not self.lexicon)
        return score

    def covered(self, words: Sequence[str]) -> int:
        """Count the words that are part of a complete hotword phrase."""
        covered = set()
        for begin, end in product(range(len(words)), range(1, len(words) + 1)):
            if " ".join(words[begin:end]) in self.hotwords:
                covered |= set(range(begin, end))
        return len(covered)

    def rank(self, log_probs: Tensor) -> dict[tuple[int, ...], float]:
        """Score all token sequences of log_probs (T', V) by enumerating all paths; the best is first."""
        frames, best = log_probs.tolist(), dict[tuple[int, ...], float]()
        for path in product(range(len(self.pieces)), repeat=len(frames)):
            tokens = tuple(collapse(path))
            log_prob = sum(frame[token] for frame, token in zip(frames, path, strict=True))
            best[tokens] = max(best.get(tokens, -math.inf), log_prob)
        fused = {tokens: self.score(tokens) for tokens in best}
        scores = {tokens: best[tokens] + score for tokens, score in fused.items() if score is not None}
        return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


def drawn_fusion(
    draw: random.Random, pieces: Sequence[str], lm_unit: str | None, lexicon: bool, hotwords: bool
) -> Fusion:
    """Draw a random fusion; its language model, lexicon and hotwords are optional.

    Args:
        draw: random generator.
        pieces: pieces of the tokenizer.
        lm_unit: "word", "token", "spelled" (a model of words with a spelling model), or None for no language model.
        lexicon: whether there is a lexicon.
        hotwords: whether there are hotwords.
    """
    names = [piece.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}") for piece in pieces[1:]]
    return Fusion(
        pieces,
        Trigrams(draw.sample(names if lm_unit == "token" else SOME_WORDS, 4), draw) if lm_unit else None,
        "token" if lm_unit == "token" else "word",
        draw.sample(SOME_WORDS, 5) if lexicon else None,
        draw.sample(PHRASES, 5) if hotwords else (),
        {name: draw.uniform(0, 3) * (-1 if name == "unknown_score" else 1) for name in NUMBERS},
        Trigrams("ab", draw) if lm_unit == "spelled" else None,  # the spelling model does not know the letter c
    )


UNREADABLE = [  # content of a file (None: no file), and the reason why it cannot be read as text
    (None, "No such file"),
    (b"\xff\xfe\x00y", "not UTF-8 text"),
    (b"new york\n\x80abc", "not UTF-8 text"),
]


def assert_unusable(path: Path, content: bytes | None, make: Callable[[str], object], named: str, reason: str) -> None:
    """Check that an unusable file causes a one-line error that names it, `named` and `reason`."""
    if content is not None:
        path.write_bytes(content)
    with refused(InputError, f"{path} ... {named} ... {reason}"):
        make(str(path))
