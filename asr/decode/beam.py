"""CTC prefix beam search with shallow fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappush, heappushpop
from itertools import takewhile
from operator import itemgetter
from typing import Annotated, NamedTuple, Self, cast

from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, Score, ShallowFusion
from asr.decode.prefixes import Prefix, finish
from asr.interfaces import BLANK_ID, FrameHead, Head, Hypothesis, Tokenizer, Tunable
from asr.settings.rule import whole

Frame = tuple[float, int, list[float], list[int]]  # blank's log-probability; how many tokens are tried; those, and they
Tried = dict[int, tuple[float, float]]  # a frame's tokens: log-probability, and that with the most that fusion may add


# Log-probability of a prefix's best path that ends in blank, and in its last token; with its score before it.
Beams = dict[Prefix, tuple[float, float]]
Reached = list[tuple[float, Prefix, float, float]]
SCORE = itemgetter(0)


class Beam:
    """Search for the tokens whose best path, with language model, lexicon and hotwords, scores highest.

    *Source*: Hannun et al. 2014, arXiv:1408.2873, algorithm 1. *Differs from the paper*: a prefix counts for its best
    path and not for the sum of its paths, so a beam of 1 without a language model is greedy decoding.

    Args:
        head: with a frame head.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: prefixes kept from frame to frame.
        beam_threshold: those that score less than the best one by more than this are not kept (natural logarithm).
        tokens_per_frame: the most likely tokens, which are tried in a frame, as blank always is.
        token_threshold: of those, the ones with a smaller log-probability are not tried, but for the first.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
    """

    needs = ("frame_head",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        token_threshold: Score,
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
    ) -> None:
        self._log_probs = cast(FrameHead, head.frame_head).log_probs
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.token_threshold = token_threshold
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords = self.fusion.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """Weight and word insertion bonus of the language model, if there is one."""
        return self.fusion.tunable

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return ", ".join([f"beam search, {self.beam_size} hypotheses", *self.fusion.description])

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[list[Frame]]:
        """Find the tokens of each frame that are tried, utterance by utterance."""
        log_probs = self._log_probs(encoder_out)  # (B, T', V)
        values, tokens = log_probs.topk(self.tokens_per_frame, dim=-1)  # (B, T', N), the most likely one first
        counts = (values >= values[..., :1].clamp(max=self.token_threshold)).sum(dim=-1)  # (B, T')
        most = max(counts.flatten().tolist(), default=0)
        columns = [
            column.tolist() for column in (log_probs[..., BLANK_ID], counts, values[..., :most], tokens[..., :most])
        ]
        utterances = ((column[number][:length] for column in columns) for number, length in enumerate(lengths.tolist()))
        return [list(zip(*frames, strict=True)) for frames in utterances]

    def search(self, evidence: list[list[Frame]], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        search = _Search(self.fusion.weighed(**values), self.beam_size, self.beam_threshold)
        return [search.hypotheses(search.advance(search.start(), frames)) for frames in evidence]

    @property
    def streaming(self) -> Self:
        """Itself: it can go on from chunk to chunk."""
        return self

    def initial_state(self) -> Grown:
        """Begin a stream."""
        return self._search.start()

    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[Grown]
    ) -> tuple[list[list[Hypothesis]], list[Grown]]:
        """Go on with streams by encoder_out (B, T', D), (B,); tokens that all of a beam begin with change no more."""
        return self.advance(self.evidence(encoder_out, lengths), states)

    def advance(
        self, evidence: list[list[Frame]], states: Sequence[Grown]
    ) -> tuple[list[list[Hypothesis]], list[Grown]]:
        """Go on with streams by the evidence of their next frames."""
        search = self._search
        new = [search.advance(state, frames) for frames, state in zip(evidence, states, strict=True)]
        return [
            [each._replace(num_final=_shared(state.beams)) for each in search.hypotheses(state)] for state in new
        ], new

    @staticmethod
    def forget(state: Grown, num_tokens: int) -> Grown:
        """Leave out the first tokens, which all of the beam begin with."""
        root = [*next(iter(state.beams)).back()][-1 - num_tokens]
        root.uproot()
        return Grown(root, state.beams)

    @staticmethod
    def decide(state: Grown, tokens: list[int]) -> Grown:
        """Keep only the prefixes that begin so."""
        begin_so = (
            (prefix, paths) for prefix, paths in state.beams.items() if prefix.tokens()[: len(tokens)] == tokens
        )
        return Grown(state.root, dict(begin_so))

    def settle(self, state: Grown) -> tuple[Hypothesis, Grown]:
        """Take the best hypothesis, and go on behind it; where no word is at its end, from the start."""
        best, *_ = self._search.hypotheses(state)
        for prefix, paths in state.beams.items():
            if prefix.tokens() == best.tokens:
                prefix.uproot()
                return best, Grown(prefix, {prefix: paths})
        return best, self.initial_state()

    @property
    def _search(self) -> _Search:
        return _Search(self.fusion, self.beam_size, self.beam_threshold)


class Grown(NamedTuple):
    """What a search has come to.

    Args:
        root: the prefix that all grew from; they live as long as it does.
        beams: see there.
    """

    root: Prefix
    beams: Beams


class _Search:
    """The search in the frames of an utterance or a stream."""

    def __init__(self, fusion: ShallowFusion, beam_size: int, beam_threshold: float) -> None:
        self.fusion = fusion
        self.beam_size = beam_size
        self.beam_threshold = beam_threshold

    def start(self) -> Grown:
        """Begin with nothing written."""
        empty = Prefix(None, BLANK_ID, self.fusion.start(), 0.0)
        return Grown(empty, {empty: (0.0, NEVER)})

    def hypotheses(self, state: Grown) -> list[Hypothesis]:
        """Close the hypotheses, the best first."""
        return finish(self.fusion, {prefix: max(paths) for prefix, paths in state.beams.items()})

    def advance(self, state: Grown, frames: Iterable[Frame]) -> Grown:
        """Go through frames."""
        at_most = self.fusion.at_most()
        beams = state.beams
        for blank, count, values, tokens in frames:
            pairs = zip(tokens[:count], values, strict=False)
            tried = {token: (value, value + at_most[token]) for token, value in pairs if token != BLANK_ID}
            reached = _stay(beams, blank, tried)
            if tried:
                self._grow(beams, tried, reached)
            reached.sort(key=SCORE, reverse=True)
            floor = reached[0][0] - self.beam_threshold
            kept = reached[: self.beam_size]
            beams = {prefix: (in_blank, in_token) for score, prefix, in_blank, in_token in kept if score >= floor}
        return Grown(state.root, beams)

    def _grow(self, beams: Beams, tried: Tried, reached: Reached) -> None:
        """Add to those reached the prefixes that are longer by a token, but for those that cannot be kept.

        Fusion, which takes longest, is asked in the order of what they can hope for, until that is below what is kept.
        """
        scores = [score for score, *_ in reached]
        top = max(scores)
        floor = top - self.beam_threshold
        heapify(scores)
        if len(scores) == self.beam_size:
            floor = max(floor, scores[0])
        longer: list[tuple[float, Prefix, int, float]] = []
        for prefix, (in_blank, in_token) in beams.items():
            best, fused = in_blank if in_blank > in_token else in_token, prefix.fused
            for token, (log_prob, hoped) in tried.items():
                path = in_blank if token == prefix.token else best  # a token comes again only behind a blank
                hope = path + hoped + fused
                if hope > floor:
                    longer.append((hope, prefix, token, path + log_prob))
        longer.sort(key=SCORE, reverse=True)
        self.fusion.read(prefix.context for _, prefix, _, _ in longer)
        for hope, prefix, token, path in longer:
            if hope <= floor:
                break
            child = prefix.children[token] if token in prefix.children else prefix.extend(self.fusion, token)
            if child is None or child in beams:
                continue
            score = path + child.fused
            reached.append((score, child, NEVER, path))
            if score > top:
                top, floor = score, max(floor, score - self.beam_threshold)
            if len(scores) < self.beam_size:
                heappush(scores, score)
            else:
                heappushpop(scores, score)
                floor = max(floor, scores[0])


def _shared(beams: Beams) -> int:
    """How many tokens all of a beam begin with."""
    tokens = [prefix.tokens() for prefix in beams]
    pairs = zip(min(tokens), max(tokens), strict=False)  # of lists in order the first and the last differ soonest
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _stay(beams: Beams, blank: float, tried: Tried) -> Reached:
    """Follow the paths that write the same as before, or what another prefix of the beam has written already."""
    reached: Reached = []
    for prefix, (in_blank, in_token) in beams.items():
        rests = (in_blank if in_blank > in_token else in_token) + blank
        ends = NEVER
        if prefix.token in tried:
            before = prefix.before()
            if before in beams:
                rested, ended = beams[before]
                path = ended if ended > rested and before.token != prefix.token else rested
                in_token = path if path > in_token else in_token
            ends = in_token + tried[prefix.token][0]
        reached.append(((rests if rests > ends else ends) + prefix.fused, prefix, rests, ends))
    return reached
