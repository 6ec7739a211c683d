"""CTC prefix beam search with shallow fusion."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from weakref import ref

from torch import Tensor

from asr.decode.fusion import Context, ShallowFusion, token_name
from asr.decode.hotwords import Phrases
from asr.decode.kenlm import NgramModel
from asr.decode.lexicon import Words, read_lexicon
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Hypothesis, Tokenizer

NEVER = -math.inf
UNITS = ("word", "token")

logger = logging.getLogger(__name__)

Frame = list[tuple[int, float]]  # what is tried there: blank and tokens, and their log-probabilities


class _Prefix:
    """Tokens that paths have written, and what fusion says to them; the same tokens are the same object.

    A prefix lives as long as the empty one does, from which all grow; cycles would keep the garbage collector busy.
    """

    __slots__ = ("__weakref__", "before", "children", "context", "fused", "token")

    def __init__(self, before: _Prefix | None, token: int, context: Context, fused: float) -> None:
        self.before = None if before is None else ref(before)
        self.token = token
        self.context = context
        self.fused = fused
        self.children: dict[int, _Prefix | None] = {}

    def back(self) -> Iterator[_Prefix]:
        """Yield this prefix and those it grew from, the empty one last."""
        prefix: _Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.before() if prefix.before else None

    def tokens(self) -> list[int]:
        """The tokens in order."""
        return [prefix.token for prefix in self.back()][-2::-1]


Beams = dict[_Prefix, list[float]]  # log-probability of a prefix's best path that ends in blank, and in its last token


class Beam:
    """Search for the tokens whose best path, with language model, lexicon and hotwords, scores highest.

    *Source*: Hannun et al. 2014, arXiv:1408.2873, algorithm 1. *Differs from the paper*: a prefix counts for its best
    path and not for the sum of its paths, so a beam of 1 without a language model is greedy decoding.

    Args:
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: prefixes kept from frame to frame.
        beam_threshold: those that score less than the best one by more than this are not kept (natural logarithm).
        tokens_per_frame: the most likely tokens, which are tried in a frame, as blank always is.
        token_threshold: of those, the ones with a smaller log-probability are not tried, but for the first.
        lm: path of an n-gram language model, ARPA or KenLM's binary; None: none.
        lm_unit: "word", or "token" for a model made by `asr.ngram --tokens`.
        lm_weight: factor of the language model's log-probability.
        word_score: added for each word, in return for what the language model takes; without one nothing is.
        unknown_score: added for each word that neither language model, lexicon nor hotwords know (natural logarithm).
        lexicon: path of a list of words, a line each, or of an ARPA model, whose words it is; None: any word.
        hotwords: path of a list of phrases, a line each; None: none.
        hotword_score: bonus for each word of a phrase (natural logarithm).

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: int,
        beam_threshold: float,
        tokens_per_frame: int,
        token_threshold: float,
        lm: str | None,
        lm_unit: str,
        lm_weight: float,
        word_score: float,
        unknown_score: float,
        lexicon: str | None,
        hotwords: str | None,
        hotword_score: float,
    ) -> None:
        for name, number in (("beam_size", beam_size), ("tokens_per_frame", tokens_per_frame)):
            if not isinstance(number, int) or number < 1:
                raise InputError(f"decode.{name} must be at least 1, and whole; got {number!r}.")
        scores = {"beam_threshold": beam_threshold, "hotword_score": hotword_score, "token_threshold": token_threshold}
        scores |= {"lm_weight": lm_weight, "word_score": word_score, "unknown_score": unknown_score}
        for name, score in scores.items():
            if not isinstance(score, int | float) or math.isnan(score):
                raise InputError(f"decode.{name} must be a number; got {score!r}.")
            if score < 0 and name in ("beam_threshold", "hotword_score"):
                raise InputError(f"decode.{name} must not be negative; got {score}.")
        if lm_unit not in UNITS:
            raise InputError(f"decode.lm_unit must be one of {', '.join(UNITS)}; got {lm_unit!r}.")
        self.beam_size = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.token_threshold = token_threshold
        model = NgramModel(lm) if lm else None
        if model is not None:
            _check_spelling(model, str(lm), lm_unit, tokenizer, normalize)
        self.phrases, self.impossible = _read_phrases(hotwords, tokenizer, normalize) if hotwords else ([], {})
        boosted = Phrases(self.phrases, hotword_score)
        self.fusion = ShallowFusion(
            tokenizer.pieces,
            model,
            lm_unit == "token",
            Words([*_writable(lexicon, tokenizer, normalize), *boosted.words]) if lexicon else None,
            boosted,
            lm_weight,
            word_score,
            unknown_score,
        )

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """log_probs (B, T', V), encoder_out_lengths (B,) to at most `beam_size` hypotheses an utterance."""
        values, tokens = log_probs.topk(self.tokens_per_frame, dim=-1)  # (B, T', N)
        columns = log_probs[..., BLANK_ID].tolist(), values.tolist(), tokens.tolist()
        return [
            self._search(map(self._frame, *(column[number][:length] for column in columns)))
            for number, length in enumerate(lengths.tolist())
        ]

    def _frame(self, blank: float, values: list[float], tokens: list[int]) -> Frame:
        floor = min(self.token_threshold, values[0])
        tried = [pair for pair in zip(tokens, values, strict=True) if pair[1] >= floor and pair[0] != BLANK_ID]
        return [(BLANK_ID, blank), *tried]  # blank always, since a lexicon may forbid all others

    def _search(self, frames: Iterable[Frame]) -> list[Hypothesis]:
        empty = _Prefix(None, BLANK_ID, self.fusion.start(), 0.0)
        beams: Beams = {empty: [0.0, NEVER]}
        for frame in frames:
            beams = self._prune(self._advance(beams, frame))
        return self._finish(beams)

    def _advance(self, beams: Beams, frame: Frame) -> Beams:
        """Extend each prefix's best paths by a frame."""
        after: Beams = {}
        for prefix, (in_blank, in_token) in beams.items():
            best = in_blank if in_blank > in_token else in_token
            for token, log_prob in frame:
                if token == BLANK_ID:
                    _reach(after, prefix, 0, best + log_prob)
                    continue
                if token == prefix.token:
                    _reach(after, prefix, 1, in_token + log_prob)  # the same token goes on
                    score = in_blank + log_prob  # it comes again only behind a blank
                else:
                    score = best + log_prob
                if score > NEVER:
                    extended = prefix.children[token] if token in prefix.children else self._extend(prefix, token)
                    if extended is not None:
                        _reach(after, extended, 1, score)
        return after

    def _extend(self, prefix: _Prefix, token: int) -> _Prefix | None:
        fused = self.fusion.extend(prefix.context, token)
        child = None if fused is None else _Prefix(prefix, token, fused[0], prefix.fused + fused[1])
        prefix.children[token] = child
        return child

    def _prune(self, beams: Beams) -> Beams:
        if len(beams) == 1:
            return beams
        scored = [(max(paths) + prefix.fused, prefix) for prefix, paths in beams.items()]
        scored.sort(key=_score, reverse=True)
        floor = scored[0][0] - self.beam_threshold
        return {prefix: beams[prefix] for score, prefix in scored[: self.beam_size] if score >= floor}

    def _finish(self, beams: Beams) -> list[Hypothesis]:
        """Close the last word; where no lexicon has any of the last words, go back to the words before them."""
        closed: list[tuple[float, _Prefix]] = []
        for prefix, paths in beams.items():
            gain = self.fusion.finish(prefix.context)
            if gain is not None:
                closed.append((max(paths) + prefix.fused + gain, prefix))
        if not closed:
            prefix, paths = next(iter(beams.items()))
            ends = ((one, self.fusion.finish(one.context)) for one in prefix.back())
            closed = [next((max(paths) + one.fused + gain, one) for one, gain in ends if gain is not None)]
        closed.sort(key=_score, reverse=True)
        return [Hypothesis(prefix.tokens(), score) for score, prefix in closed]


def _score(scored: tuple[float, _Prefix]) -> float:
    return scored[0]


def _reach(beams: Beams, prefix: _Prefix, ending: int, score: float) -> None:
    """Keep the better of the paths that write the same and end alike."""
    paths = beams.get(prefix)
    if paths is None:
        paths = beams[prefix] = [NEVER, NEVER]
    if score > paths[ending]:
        paths[ending] = score


def _check_spelling(
    model: NgramModel, path: str, unit: str, tokenizer: Tokenizer, normalize: Callable[[str], str]
) -> None:
    """Check that a language model is of what is written here: another's capitals, or tokens, would never be found."""
    if unit == "token":
        names = {token_name(piece) for piece in tokenizer.pieces}
        fitting, of = sum(word in names for word in model.words), "the tokenizer's tokens. Leave lm_unit at word"
    else:
        of = "words as the normaliser writes them. Make it of normalised text (asr.ngram), or set lm_unit to token"
        fitting = sum(token_name(" ") not in word and normalize(word) == word for word in model.words)
        if any(token_name(" ") in word for word in model.words):  # letters that are tokens may be words, too
            fitting = 0
    if fitting < len(model.words) / 2:
        must = f"{path}: the entries of a language model must be {of}"
        raise InputError(f"{must}; of {len(model.words)}, {fitting} are.")


def _writable(path: str, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> list[str]:
    """Read a lexicon; return its words, normalised, that the tokenizer can spell, and say how many it cannot."""
    words: list[str] = []
    impossible: list[str] = []
    for word in read_lexicon(path):
        try:
            tokenizer.encode(normalize(word))
            words += normalize(word).split()
        except InputError:
            impossible.append(word)
    if not words:
        raise InputError(f"{path}: a lexicon must hold words the tokenizer can spell; of {len(impossible)}, none.")
    if impossible:
        shown = ", ".join(impossible[:3])
        logger.warning("%s: %d of its words cannot be spelled by the tokenizer: %s, …", path, len(impossible), shown)
    return words


def _read_phrases(path: str, tokenizer: Tokenizer, normalize: Callable[[str], str]) -> tuple[list[str], dict[str, str]]:
    """Read hotwords; return those that can be written, normalised, and why the others cannot."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error.reason})"
        raise InputError(f"{path}: hotwords must be a text file, a phrase a line; {reason}.") from None
    phrases: dict[str, None] = {}
    impossible: dict[str, str] = {}
    for line in lines:
        phrase = normalize(line)
        if not line.strip():
            continue
        try:
            tokenizer.encode(phrase)
        except InputError as error:
            impossible[line.strip()] = str(error)
            continue
        if phrase:
            phrases[phrase] = None
        else:
            impossible[line.strip()] = "nothing is left of it when it is normalised"
    if not phrases and not impossible:
        raise InputError(f"{path}: hotwords must be phrases, one a line; the file holds none.")
    return list(phrases), impossible
