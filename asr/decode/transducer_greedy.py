"""Greedy decoding of a transducer in batches."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Self, cast

import torch
from torch import Tensor

from asr.decode import greedy_paths
from asr.decode.greedy_paths import Cursor, GreedyPath, TokenSteps, WrittenTokens
from asr.decode.greedy_steps import Place, by_durations, by_frames
from asr.decode.token_times import with_times_of
from asr.interfaces import (
    NO_BIASING,
    Encoded,
    Head,
    Hypothesis,
    Span,
    Tokenizer,
    TransducerHead,
    Tunable,
)
from asr.settings.rule import whole


class TransducerGreedy:
    """Emit the most likely token of a frame until it is the blank; then continue with the next frame.

    With durations, advance by the most likely duration of each token and of each blank.

    *Source*: Graves 2012, arXiv:1211.3711; durations: Xu et al. 2023, arXiv:2304.06795, section 3.4. A batch is decoded
    in a loop over labels (Bataev et al. 2024, arXiv:2406.06220): each utterance of a batch has its own current frame;
    it skips blanks, then the prediction network reads the next token of all utterances. A token's confidence is its
    probability, unless a CTC head computes times and confidences (`asr.decode.token_times`).

    Args:
        head: a head with a joiner and a predictor.
        tokenizer, normalize: part of the decoders' interface; not used.
        max_symbols: maximum number of tokens in a frame; after them, a blank of one frame is emitted.
    """

    needs = ("joiner",)
    max_seconds = None
    max_hypotheses = 1
    biasing = NO_BIASING
    compile_hotwords = None
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
        self.head = cast(TransducerHead, head)
        self.max_symbols = max_symbols

    def evidence(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the joiner's input from the frames, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoded.out), encoded.lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its path."""
        frames, lengths = evidence
        written, cursor = self._walk(frames, lengths, greedy_paths.begin(self.head, len(lengths)))
        hypotheses = []
        for row, score, length in zip(written, cursor.scores.tolist(), lengths.tolist(), strict=True):
            inside = [Span(start, min(end, length)) for start, end in row.frames]
            hypothesis = Hypothesis(row.tokens, score, inside, row.confidences)
            hypotheses.append([with_times_of(self.head, hypothesis, length)])
        return hypotheses

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> GreedyPath:
        """Begin a stream."""
        return greedy_paths.begin_stream(self.head)

    @torch.inference_mode()
    def step(self, encoded: Encoded, states: Sequence[GreedyPath]) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams with the next chunk of each; all tokens are final immediately."""
        frames, lengths = self.evidence(encoded)
        written, cursor = self._walk(frames, lengths, greedy_paths.together(states))
        new = greedy_paths.continued(states, lengths, written, cursor)
        return [[self._hypothesis(state)] for state in new], new

    decide = staticmethod(greedy_paths.decide)
    forget = staticmethod(greedy_paths.forget)

    def settle(self, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Make all tokens final; the new state continues after them."""
        return self._hypothesis(state), greedy_paths.settled(state)

    def _hypothesis(self, state: GreedyPath) -> Hypothesis:
        return with_times_of(self.head, greedy_paths.hypothesis(state))

    def _walk(self, frames: Tensor, lengths: Tensor, cursor: Cursor) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J), in each pass at most one per utterance."""
        step = partial(by_durations if self.head.durations else by_frames, self.head, self.max_symbols, frames, lengths)
        steps, place = TokenSteps(len(lengths)), Place(cursor.frames, torch.zeros_like(lengths), cursor.scores)
        while bool((place.frames < lengths).any()):
            emitted, place = step(cursor.before, place)
            steps.add(*emitted)
            cursor = greedy_paths.read(self.head, cursor, emitted.tokens)
        return steps.written(), cursor._replace(frames=place.frames - lengths, scores=place.scores)
