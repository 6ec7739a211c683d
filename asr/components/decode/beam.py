"""CTC prefix beam search with shallow fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappush, heappushpop
from itertools import takewhile
from operator import itemgetter
from typing import Annotated, NamedTuple, Self, cast

from asr.base.settings.rule import whole
from asr.components.decode.fusion.hotwords import replaced
from asr.components.decode.fusion.shallow_fusion import NEVER, Bonus, FusionMaker, Score, ShallowFusion
from asr.components.decode.prefixes import Prefix, finish
from asr.interfaces import BLANK_ID, NO_BIASING, Biasing, Biasings, Encoded, FrameHead, Head, Hypothesis, Tokenizer

Frame = tuple[float, int, list[float], list[int]]  # log-prob of blank; number of tokens to try; their log-probs; tokens
Tried = dict[int, tuple[float, float]]  # by token: log-probability; upper bound of its sum with the gain from fusion

Beams = dict[Prefix, tuple[float, float]]  # log-probabilities of the best paths ending in blank and in the last token
Reached = list[tuple[float, Prefix, float, float]]  # score; prefix; its two log-probabilities, as in Beams
SCORE = itemgetter(0)


class Beam:
    """Search for the tokens with the highest total score of CTC path, language model, lexicon and hotwords.

    *Source*: Hannun et al. 2014, arXiv:1408.2873, algorithm 1. *Differs from the paper*: a prefix is scored by its best
    path and not by the sum of its paths, so beam_size 1 without a language model is greedy decoding.

    Args:
        head: a head with a frame head.
        beam_size: number of prefixes after each frame.
        beam_threshold: prefixes are pruned if the best prefix scores higher by more than this (natural logarithm).
        tokens_per_frame: number of most likely tokens of a frame, including the blank, that the search tries.
        token_threshold: minimum log-probability of a token that is tried; the most likely token is always tried.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
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
        fusion: FusionMaker,
    ) -> None:
        self._log_probs = cast(FrameHead, head.frame_head).log_probs
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.token_threshold = token_threshold
        self.fusion = fusion(tokenizer, normalize)
        self.biasing, self.tunable = self.fusion.biasing, self.fusion.tunable
        self.compile_hotwords = self.fusion.compile_hotwords
        self.description = self.fusion.describe(f"beam search, {beam_size} hypotheses")

    def evidence(self, encoded: Encoded) -> list[list[Frame]]:
        """Find the tokens to try in each frame of each utterance."""
        log_probs = encoded.log_probs_by(self._log_probs)  # (B, T', V)
        values, tokens = log_probs.topk(self.tokens_per_frame, dim=-1)  # (B, T', N), most likely token first
        counts = (values >= values[..., :1].clamp(max=self.token_threshold)).sum(dim=-1)  # (B, T')
        width = max(counts.flatten().tolist(), default=0)
        columns = [
            column.tolist() for column in (log_probs[..., BLANK_ID], counts, values[..., :width], tokens[..., :width])
        ]
        utterances = (
            (column[number][:length] for column in columns) for number, length in enumerate(encoded.frame_counts)
        )
        return [list(zip(*frames, strict=True)) for frames in utterances]

    def search(self, evidence: list[list[Frame]], biasings: Biasings = None, **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        searches = [self._search(fusion) for fusion in self.fusion.of_utterances(len(evidence), biasings, values)]
        return [
            search.hypotheses(search.advance(search.start(NO_BIASING), frames))
            for search, frames in zip(searches, evidence, strict=True)
        ]

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    def initial_state(self, biasing: Biasing = NO_BIASING) -> Grown:
        """Begin a stream."""
        return self._search(self.fusion.biased(biasing)).start(biasing)

    @staticmethod
    def replace_hotwords(state: Grown, biasing: Biasing) -> Grown:
        """Replace the hotwords of a stream; a phrase that has begun can still be completed."""
        reached = {prefix for last in state.beams for prefix in last.back()}
        for prefix in state.beams:  # forget the gains of tokens that no hypothesis has taken
            prefix.children = {token: child for token, child in prefix.children.items() if child in reached}
        return state._replace(biasing=replaced(state.biasing, biasing))

    def step(self, encoded: Encoded, states: Sequence[Grown]) -> tuple[list[list[Hypothesis]], list[Grown]]:
        """Continue streams with the next chunk of each; tokens shared by all prefixes are final."""
        searches = [self._search(self.fusion.biased(state.biasing)) for state in states]
        rows = zip(searches, states, self.evidence(encoded), strict=True)
        new = [search.advance(state, frames) for search, state, frames in rows]
        return [
            [hypothesis._replace(num_final=_shared(state.beams)) for hypothesis in search.hypotheses(state)]
            for search, state in zip(searches, new, strict=True)
        ], new

    @staticmethod
    def forget(state: Grown, num_tokens: int) -> Grown:
        """Drop the first `num_tokens` tokens, which all prefixes of the beam share."""
        root = [*next(iter(state.beams)).back()][-1 - num_tokens]
        root.uproot()
        return state._replace(root=root)

    @staticmethod
    def decide(state: Grown, tokens: list[int]) -> Grown:
        """Prune all prefixes that do not begin with these tokens."""
        beams = {prefix: paths for prefix, paths in state.beams.items() if prefix.tokens()[: len(tokens)] == tokens}
        return state._replace(beams=beams)

    def settle(self, state: Grown) -> tuple[Hypothesis, Grown]:
        """Make the best hypothesis final; return it and the state that continues after it.

        If the hypothesis leaves out an incomplete last word, the search continues from the initial state.
        """
        best, *_ = self._search(self.fusion.biased(state.biasing)).hypotheses(state)
        for prefix, paths in state.beams.items():
            if prefix.tokens() == best.tokens:
                prefix.uproot()
                return best, Grown(prefix, {prefix: paths}, state.biasing)
        return best, self.initial_state(state.biasing)

    def _search(self, fusion: ShallowFusion) -> _Search:
        return _Search(fusion, self.beam_size, self.beam_threshold)


class Grown(NamedTuple):
    """State of a search.

    Args:
        root: common ancestor of all prefixes. The state must refer to it, because a prefix is owned by its parent and
            has only a weak reference to the parent.
        beams: prefixes with their log-probabilities.
        biasing: hotwords of the stream.
    """

    root: Prefix
    beams: Beams
    biasing: Biasing


class _Search:
    """Search over the frames of an utterance or a stream."""

    def __init__(self, fusion: ShallowFusion, beam_size: int, beam_threshold: float) -> None:
        self.fusion = fusion
        self.beam_size = beam_size
        self.beam_threshold = beam_threshold

    def start(self, biasing: Biasing) -> Grown:
        """Return the state with the empty prefix, for a stream with these hotwords."""
        empty = Prefix(None, BLANK_ID, self.fusion.start(), 0.0)
        return Grown(empty, {empty: (0.0, NEVER)}, biasing)

    def hypotheses(self, state: Grown) -> list[Hypothesis]:
        """End the last word of each prefix; return the hypotheses, best first."""
        return finish(self.fusion, {prefix: max(paths) for prefix, paths in state.beams.items()})

    def advance(self, state: Grown, frames: Iterable[Frame]) -> Grown:
        """Advance the search by frames."""
        max_gains = self.fusion.at_most()
        beams = state.beams
        for blank, count, values, tokens in frames:
            pairs = zip(tokens[:count], values, strict=False)
            tried = {token: (value, value + max_gains[token]) for token, value in pairs if token != BLANK_ID}
            reached = _stay(beams, blank, tried)
            if tried:
                self._grow(beams, tried, reached)
            reached.sort(key=SCORE, reverse=True)
            floor = reached[0][0] - self.beam_threshold
            best = reached[: self.beam_size]
            beams = {prefix: (in_blank, in_token) for score, prefix, in_blank, in_token in best if score >= floor}
        return state._replace(beams=beams)

    def _grow(self, beams: Beams, tried: Tried, reached: Reached) -> None:
        """Append to `reached` the prefixes extended by a token, except extensions that would be pruned.

        Fusion takes most of the time. So extensions are scored in descending order of upper bounds, until a bound is
        below the score needed to stay in the beam.
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
                path = in_blank if token == prefix.token else best  # a token repeats only after a blank
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
    """Return the length of the longest common prefix of all prefixes of a beam."""
    tokens = [prefix.tokens() for prefix in beams]
    # In sorted order, tokens shared by the first and the last prefix are shared by all prefixes.
    pairs = zip(min(tokens), max(tokens), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _stay(beams: Beams, blank: float, tried: Tried) -> Reached:
    """Advance paths by a blank, a repeated token, or a token that leads to another prefix of the beam."""
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
