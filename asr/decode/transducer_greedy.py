"""Greedy decoding of a transducer, a batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Self, cast

import torch
from torch import Tensor

from asr.decode import greedy_paths
from asr.decode.greedy_paths import GreedyPath, Place, TokenSteps, WrittenTokens
from asr.interfaces import (
    BLANK_ID,
    NO_HOTWORDS,
    Head,
    Hypothesis,
    JointNetwork,
    Predictor,
    Tokenizer,
    TransducerHead,
    Tunable,
)
from asr.settings.rule import whole

LOOK_AHEAD = 4  # frames that are joined at once


class TransducerGreedy:
    """Write the most likely token, frame by frame, until that is the blank; then go on to the next frame.

    *Source*: Graves 2012, arXiv:1211.3711. Each utterance of a batch is in a frame of its own (Bataev et al. 2024,
    arXiv:2406.06220), so that none waits for another's tokens. A CTC head beside the transducer gives tokens their
    times; without one, or where there are more tokens than CTC can spell, they have those of the frames where they are
    written, and their probabilities are their confidences.

    Args:
        head: with a joiner and a predictor.
        tokenizer, normalize: as for every decoder; the most likely token asks neither.
        max_symbols: tokens in a frame, at most.
    """

    needs = ("joiner",)
    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
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

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the joiner takes of each frame, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoder_out), lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Find one hypothesis of each utterance, scored by its path."""
        frames, lengths = evidence
        written, place = self._walk(frames, lengths, greedy_paths.begin(*self._parts, len(lengths)))
        rows = zip(written, place.scores.tolist(), lengths.tolist(), strict=True)
        return [[self._hypothesis(Hypothesis(row.tokens, score, *row[1:]), length)] for row, score, length in rows]

    @property
    def streaming(self) -> Self:
        """Itself: it can go on from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> GreedyPath:
        """Begin a stream."""
        return greedy_paths.begin_stream(*self._parts)

    @torch.inference_mode()
    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[GreedyPath]
    ) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams by encoder_out (B, T', D), (B,): no token ever changes."""
        frames, _ = self.evidence(encoder_out, lengths)
        written, place = self._walk(frames, lengths, greedy_paths.together(states))
        new = greedy_paths.continued(states, lengths, written, place)
        return [[self._hypothesis(greedy_paths.hypothesis(state))] for state in new], new

    decide = staticmethod(greedy_paths.decide)
    forget = staticmethod(greedy_paths.forget)

    def settle(self, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Take what there is, and continue after it."""
        return self._hypothesis(greedy_paths.hypothesis(state)), greedy_paths.settled(state)

    @property
    def _parts(self) -> tuple[Predictor, JointNetwork]:
        return self.head.predictor, self.head.joiner

    def _hypothesis(self, hypothesis: Hypothesis, num_frames: int | None = None) -> Hypothesis:
        """Leave times to the CTC head, if it can spell the tokens in so many frames; None: the stream asks it."""
        frame_head = self.head.frame_head
        if frame_head is None or (num_frames is not None and frame_head.min_frames(hypothesis.tokens) > num_frames):
            return hypothesis
        return hypothesis._replace(frames=None, confidences=None)

    def _walk(self, frames: Tensor, lengths: Tensor, place: Place) -> tuple[list[WrittenTokens], Place]:
        """Write tokens of frames (B, T', J)."""
        steps, scores = TokenSteps(len(lengths)), place.scores
        number = torch.zeros_like(lengths)  # of the frame that each utterance is in
        symbols = torch.zeros_like(lengths)  # tokens written in that frame
        rows = torch.arange(len(lengths), device=lengths.device)
        ahead = torch.arange(LOOK_AHEAD, device=lengths.device)
        while bool((number < lengths).any()):
            window = number[:, None] + ahead  # (B, W): until a token is written, frames do not depend on one another
            here = frames[rows[:, None], window.clamp(max=frames.shape[1] - 1)]  # (B, W, J)
            logits = self.head.joiner(here.flatten(0, 1), place.before.repeat_interleave(LOOK_AHEAD, dim=0))
            log_probs = logits.log_softmax(dim=-1).unflatten(0, (-1, LOOK_AHEAD))  # (B, W, V)
            best, token = log_probs.max(dim=-1)  # (B, W)
            can = token != BLANK_ID
            can[:, 0] &= symbols < self.max_symbols
            is_there = window < lengths[:, None]
            waits = (~can | ~is_there).cumprod(dim=1).bool()  # frames before the first that writes
            passes = waits & is_there
            scores = scores + log_probs[:, :, BLANK_ID].masked_fill(~passes, 0.0).sum(dim=1)
            passed = passes.sum(dim=1)  # (B,)
            writes = ~waits[:, -1]
            first = passed.clamp(max=LOOK_AHEAD - 1)
            token, best = torch.where(writes, token[rows, first], BLANK_ID), best[rows, first]
            scores = scores + best.masked_fill(~writes, 0.0)
            number = number + passed
            steps.add(token, number, number + 1, best)
            symbols = (symbols * (passed == 0) + 1) * writes
            place = greedy_paths.read(*self._parts, place, token)
        return steps.written(), place._replace(scores=scores)
