"""Greedy decoding of a transducer in batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Self

import torch
from torch import Tensor

from asr.base.settings.rule import whole
from asr.components.decode import greedy_paths
from asr.components.decode.fusion.hotwords import replaced
from asr.components.decode.fusion.shallow_fusion import Context, ShallowFusion, only_hotwords
from asr.components.decode.greedy_guides import Guide, HotwordGuide, MostLikely
from asr.components.decode.greedy_paths import Cursor, GreedyPath, TokenSteps, WrittenTokens
from asr.components.decode.greedy_steps import GreedyWalk, Place, remain
from asr.components.decode.token_times import with_times_of
from asr.components.decode.turns import searched
from asr.interfaces import (
    NO_BIASING,
    Biasing,
    Biasings,
    Encoded,
    Head,
    Hypothesis,
    Tokenizer,
    Tunable,
)


class TransducerGreedy:
    """Emit the most likely token of a frame until it is the blank; then continue with the next frame.

    With durations, advance by the most likely duration of each token and of each blank.

    *Source*: Graves 2012, arXiv:1211.3711; durations: Xu et al. 2023, arXiv:2304.06795, section 3.4. A batch is decoded
    in a loop over labels (Bataev et al. 2024, arXiv:2406.06220): each utterance of a batch has its own current frame;
    it skips blanks, then the prediction network reads the next token of all utterances. A token's confidence is its
    probability, unless a CTC head computes times and confidences (`asr.components.decode.token_times`).

    Hotwords of utterances and streams (`asr.components.decode.greedy_guides`) can only choose among the tokens of a
    frame: a beam search corrects more errors in more time.

    Args:
        head: a head with a joiner and a predictor.
        tokenizer: its pieces spell the hotwords.
        max_symbols: maximum number of tokens in a frame; after them, a blank of one frame is emitted.
    """

    needs = ("joiner",)
    max_seconds = None
    max_hypotheses = 1
    biasing = NO_BIASING
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the most likely token"

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        max_symbols: Annotated[int, whole(1, 1_000)],
    ) -> None:
        self.head = searched(head, tokenizer)
        self.max_symbols = max_symbols
        self._spelling = tokenizer, normalize

    @cached_property
    def _fusion(self) -> ShallowFusion:
        return only_hotwords(*self._spelling)

    def compile_hotwords(self, phrases: Iterable[str], score: float | None = None) -> Biasing:
        """Compile phrases; None: the bonus for each word is that of conf/decode/fusion."""
        return self._fusion.compile_hotwords(phrases, score)

    def evidence(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the joiner's input from the frames, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoded.out), encoded.lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor], biasings: Biasings = None) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its path and its hotwords."""
        frames, lengths = evidence
        biasings = biasings or [NO_BIASING] * len(lengths)
        guide = self._guide(biasings, (self._fusion.start() for _ in biasings))
        beginning = greedy_paths.begin(self.head, len(lengths))
        written, cursor = self._walk(guide, frames, lengths, beginning)
        scores = [score + gain for score, gain in zip(cursor.scores.tolist(), guide.endings(), strict=True)]
        return greedy_paths.hypotheses(self.head, written, scores, lengths.tolist())

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self, biasing: Biasing = NO_BIASING) -> GreedyPath:
        """Begin a stream."""
        return greedy_paths.begin_stream(self.head, biasing)

    @staticmethod
    def replace_hotwords(state: GreedyPath, biasing: Biasing) -> GreedyPath:
        """Replace the hotwords of a stream; a phrase that has begun can still be completed."""
        return state._replace(biasing=replaced(state.biasing, biasing))

    @torch.inference_mode()
    def step(self, encoded: Encoded, states: Sequence[GreedyPath]) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams with the next chunk of each; all tokens are final immediately."""
        frames, lengths = self.evidence(encoded)
        guide = self._guide([state.biasing for state in states], map(self._context, states))
        cursor = greedy_paths.together(states)
        written, cursor = self._walk(guide, frames, lengths, cursor)
        new = greedy_paths.continued(states, lengths, written, cursor, guide.contexts)
        return [[self._hypothesis(state)] for state in new], new

    decide = staticmethod(greedy_paths.decide)
    forget = staticmethod(greedy_paths.forget)

    def settle(self, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Make all tokens final; the new state continues after them."""
        return self._hypothesis(state), greedy_paths.settled(state)

    def _walk(
        self, guide: Guide, frames: Tensor, lengths: Tensor, cursor: Cursor
    ) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J), in each pass at most one per utterance."""
        step = GreedyWalk(self.head, self.max_symbols, guide.choose, frames, lengths)
        steps, place = TokenSteps(len(lengths)), Place(cursor.frames, torch.zeros_like(lengths), cursor.scores)
        num_passes = 0
        while remain(place.frames < lengths, num_passes):
            num_passes += 1
            emitted, place = step(cursor.before, place)
            place = guide.follow(emitted, place)
            steps.add(*emitted)
            cursor = greedy_paths.read(self.head, cursor, emitted.tokens)
        return steps.written(), cursor._replace(frames=place.frames - lengths, scores=place.scores)

    def _guide(self, biasings: Sequence[Biasing], contexts: Iterable[Context]) -> Guide:
        if not any(biasing.lists for biasing in biasings):
            return MostLikely(len(biasings))  # does not read the contexts, which can wait for the device
        return HotwordGuide([self._fusion.biased(biasing) for biasing in biasings], contexts)

    def _context(self, state: GreedyPath) -> Context:
        """Return the state of a stream's hotwords; if it is unknown, the state after the last token alone."""
        if state.context is not None:
            return state.context
        extended = self._fusion.extend(self._fusion.start(), int(state.cursor.tokens))
        assert extended is not None  # only a lexicon excludes tokens
        return extended[0]

    def _hypothesis(self, state: GreedyPath) -> Hypothesis:
        hypothesis = with_times_of(self.head, greedy_paths.hypothesis(state))
        if not state.biasing.lists:
            return hypothesis
        return hypothesis._replace(score=hypothesis.score + (self._fusion.finish(self._context(state)) or 0.0))
