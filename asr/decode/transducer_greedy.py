"""Greedy decoding of a transducer in batches."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Self, cast

import torch
from torch import Tensor

from asr.decode import greedy_paths
from asr.decode.greedy_paths import Cursor, GreedyPath, TokenSteps, WrittenTokens
from asr.interfaces import (
    BLANK_ID,
    NO_HOTWORDS,
    Encoded,
    Head,
    Hypothesis,
    JointNetwork,
    Predictor,
    Tokenizer,
    TransducerHead,
    Tunable,
)
from asr.settings.rule import whole

LOOK_AHEAD = 4  # number of frames that the joiner processes at once


class TransducerGreedy:
    """Emit the most likely token of a frame until it is the blank; then continue with the next frame.

    *Source*: Graves 2012, arXiv:1211.3711. Each utterance of a batch has its own current frame (Bataev et al. 2024,
    arXiv:2406.06220), so utterances do not wait for each other. A CTC head beside the transducer computes the times
    of tokens. Without a CTC head, or if the utterance has too few frames for CTC to spell the tokens, a token has the
    time of the frame that emitted it, and its probability is its confidence.

    Args:
        head: a head with a joiner and a predictor.
        tokenizer, normalize: part of the decoders' interface; not used.
        max_symbols: maximum number of tokens in a frame.
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

    def evidence(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the joiner's input from the frames, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoded.out), encoded.lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its path."""
        frames, lengths = evidence
        written, cursor = self._walk(frames, lengths, greedy_paths.begin(*self._parts, len(lengths)))
        rows = zip(written, cursor.scores.tolist(), lengths.tolist(), strict=True)
        return [[self._hypothesis(Hypothesis(row.tokens, score, *row[1:]), length)] for row, score, length in rows]

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> GreedyPath:
        """Begin a stream."""
        return greedy_paths.begin_stream(*self._parts)

    @torch.inference_mode()
    def step(self, encoded: Encoded, states: Sequence[GreedyPath]) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams with the next chunk of each; all tokens are final immediately."""
        frames, lengths = self.evidence(encoded)
        written, cursor = self._walk(frames, lengths, greedy_paths.together(states))
        new = greedy_paths.continued(states, lengths, written, cursor)
        return [[self._hypothesis(greedy_paths.hypothesis(state))] for state in new], new

    decide = staticmethod(greedy_paths.decide)
    forget = staticmethod(greedy_paths.forget)

    def settle(self, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Make all tokens final; the new state continues after them."""
        return self._hypothesis(greedy_paths.hypothesis(state)), greedy_paths.settled(state)

    @property
    def _parts(self) -> tuple[Predictor, JointNetwork]:
        return self.head.predictor, self.head.joiner

    def _hypothesis(self, hypothesis: Hypothesis, num_frames: int | None = None) -> Hypothesis:
        """Remove times and confidences if a CTC head can align the tokens; it then computes better ones.

        A CTC head cannot align the tokens if the utterance has too few frames for them.

        Args:
            num_frames: number of frames of the utterance; None, for a stream: assume that there are enough.
        """
        frame_head = self.head.frame_head
        if frame_head is None or (num_frames is not None and frame_head.min_frames(hypothesis.tokens) > num_frames):
            return hypothesis
        return hypothesis._replace(frames=None, confidences=None)

    def _walk(self, frames: Tensor, lengths: Tensor, cursor: Cursor) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J)."""
        steps, scores = TokenSteps(len(lengths)), cursor.scores
        number = torch.zeros_like(lengths)  # current frame of each utterance
        symbols = torch.zeros_like(lengths)  # tokens emitted in the current frame
        rows = torch.arange(len(lengths), device=lengths.device)
        ahead = torch.arange(LOOK_AHEAD, device=lengths.device)
        while bool((number < lengths).any()):
            window = number[:, None] + ahead  # (B, W): frames are independent until a token is emitted
            here = frames[rows[:, None], window.clamp(max=frames.shape[1] - 1)]  # (B, W, J)
            logits = self.head.joiner(here.flatten(0, 1), cursor.before.repeat_interleave(LOOK_AHEAD, dim=0))
            log_probs = logits.log_softmax(dim=-1).unflatten(0, (-1, LOOK_AHEAD))  # (B, W, V)
            best, token = log_probs.max(dim=-1)  # (B, W)
            emits = token != BLANK_ID
            emits[:, 0] &= symbols < self.max_symbols
            is_there = window < lengths[:, None]
            waits = (~emits | ~is_there).cumprod(dim=1).bool()  # frames before the first that emits a token
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
            cursor = greedy_paths.read(*self._parts, cursor, token)
        return steps.written(), cursor._replace(scores=scores)
