"""Parts shared by greedy searches of transducers: emitted tokens, the state of a stream, and its steps."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor

from asr.interfaces import BLANK_ID, NO_HOTWORDS, Head, Hypothesis, JointNetwork, Span, Tokenizer, Tunable
from asr.kernels.choice import exact
from asr.settings.rule import whole


class Cursor(NamedTuple):
    """State of the paths of a batch.

    Args:
        frames: current frame of each path, relative to the first frame of the next call's input, (B,).
        tokens: last token of each path, (B,).
        scores: score of each path, (B,).
        before: the joiner's input from the tokens so far, (B, J).
        state: state of the prediction network, (B, ...).
    """

    frames: Tensor
    tokens: Tensor
    scores: Tensor
    before: Tensor
    state: Tensor


class WrittenTokens(NamedTuple):
    """Tokens of an utterance, with their times and confidences.

    Args:
        tokens: tokens without blanks.
        frames: span of each token.
        confidences: probability of each token.
    """

    tokens: list[int]
    frames: list[Span]
    confidences: list[float]


class GreedyPath(NamedTuple):
    """State of the path of a stream.

    Args:
        written: tokens that `forget` has not dropped; their frames count from the beginning of the stream.
        num_frames: number of frames of the stream so far.
        cursor: state of the path, a batch of one.
    """

    written: WrittenTokens
    num_frames: int
    cursor: Cursor


class TokenSteps:
    """Tokens that a batch emits, one tensor (B,) per step, with the blank for utterances without a token."""

    def __init__(self, num_utterances: int) -> None:
        self._num_utterances = num_utterances
        self._steps: list[tuple[Tensor, ...]] = []

    def add(self, tokens: Tensor, starts: Tensor, ends: Tensor, log_probs: Tensor) -> None:
        """Add a step: tokens, their spans, and their log-probabilities (for confidences), (B,) each."""
        self._steps.append((tokens, starts, ends, log_probs.exp()))

    def written(self) -> list[WrittenTokens]:
        """Return the tokens of each utterance."""
        if not self._steps:
            return [WrittenTokens([], [], []) for _ in range(self._num_utterances)]
        columns = [torch.stack(column, dim=1).tolist() for column in zip(*self._steps, strict=True)]
        rows = []
        for row in zip(*columns, strict=True):
            tokens = [step for step in zip(*row, strict=True) if step[0] != BLANK_ID]
            rows.append(
                WrittenTokens(
                    [token for token, *_ in tokens],
                    [Span(start, end) for _, start, end, _ in tokens],
                    [min(1.0, confidence) for *_, confidence in tokens],
                )
            )
        return rows


class GreedyTransducer:
    """A greedy search of a transducer; a subclass has the joiner and walks through the frames.

    Args:
        head: a head with a joiner and a predictor.
        tokenizer, normalize: part of the decoders' interface; not used.
        max_symbols: maximum number of tokens in a frame.
    """

    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
    tunable: Mapping[str, Tunable] = MappingProxyType({})

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        max_symbols: Annotated[int, whole(1, 1_000)],
    ) -> None:
        self.head: Any = head
        self.max_symbols = max_symbols

    @property
    def joiner(self) -> JointNetwork:
        """The joint network of the head."""
        raise NotImplementedError

    def walk(self, frames: Tensor, lengths: Tensor, cursor: Cursor) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J)."""
        raise NotImplementedError

    def finished(self, hypothesis: Hypothesis, num_frames: int | None = None) -> Hypothesis:
        """Complete the times of a hypothesis; `num_frames` is None in a stream, whose end is unknown."""
        raise NotImplementedError

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joiner's input from the frames, (B, T', J), and the lengths."""
        return self.joiner.of_frames(encoder_out), lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Return one hypothesis per utterance, scored by its path."""
        frames, lengths = evidence
        written, cursor = self.walk(frames, lengths, self._begin(len(lengths)))
        rows = zip(written, cursor.scores.tolist(), lengths.tolist(), strict=True)
        return [[self.finished(Hypothesis(row.tokens, score, *row[1:]), length)] for row, score, length in rows]

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    @torch.inference_mode()
    def initial_state(self) -> GreedyPath:
        """Begin a stream."""
        return GreedyPath(WrittenTokens([], [], []), 0, self._begin(1))

    @torch.inference_mode()
    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[GreedyPath]
    ) -> tuple[list[list[Hypothesis]], list[GreedyPath]]:
        """Continue streams with encoder_out (B, T', D), lengths (B,); all tokens are final immediately."""
        frames, _ = self.evidence(encoder_out, lengths)
        together = Cursor(*map(torch.cat, zip(*(state.cursor for state in states), strict=True)))
        written, cursor = self.walk(frames, lengths, together)
        new = _continued(states, lengths, written, cursor)
        return [[self._hypothesis(state)] for state in new], new

    def decide(self, state: GreedyPath, tokens: list[int]) -> GreedyPath:
        """Return the state unchanged: there is only one hypothesis."""
        return state

    def forget(self, state: GreedyPath, num_tokens: int) -> GreedyPath:
        """Drop the first `num_tokens` tokens; the state of the prediction network still depends on them."""
        tokens, frames, confidences = state.written
        rest = WrittenTokens(tokens[num_tokens:], frames[num_tokens:], confidences[num_tokens:])
        return state._replace(written=rest)

    def settle(self, state: GreedyPath) -> tuple[Hypothesis, GreedyPath]:
        """Make all tokens final; the new state continues after them."""
        return self._hypothesis(state), state._replace(written=WrittenTokens([], [], []))

    def read(self, cursor: Cursor, tokens: Tensor) -> Cursor:
        """Advance the prediction network by tokens (B,); utterances with a blank keep their state."""
        writes = tokens != BLANK_ID
        if not bool(writes.any()):
            return cursor
        tokens = torch.where(writes, tokens, cursor.tokens)
        out, after = self.head.predictor.step(tokens, cursor.state)
        state = torch.where(writes.view(-1, *[1] * (after.dim() - 1)), after, cursor.state)
        before = torch.where(writes[:, None], self.joiner.of_tokens(out), cursor.before)
        return cursor._replace(tokens=tokens, before=before, state=state)

    def _begin(self, number: int) -> Cursor:
        """Return the state of `number` utterances before their first frame."""
        state = self.head.predictor.initial_state(number)
        tokens = torch.full((number,), BLANK_ID, device=state.device)
        out, state = self.head.predictor.step(tokens, state)
        scores = torch.zeros(number, dtype=exact(state.device), device=state.device)
        return Cursor(torch.zeros_like(tokens), tokens, scores, self.joiner.of_tokens(out), state)

    def _hypothesis(self, state: GreedyPath) -> Hypothesis:
        """Return the hypothesis of a stream; all its tokens are final."""
        tokens, frames, confidences = state.written
        score = float(state.cursor.scores)
        return self.finished(Hypothesis(tokens, score, frames, confidences, num_final=len(tokens)))


def _continued(
    states: Sequence[GreedyPath], lengths: Tensor, written: Sequence[WrittenTokens], cursor: Cursor
) -> list[GreedyPath]:
    """Return the states after `lengths` more frames (B,), in which streams emitted `written` and reached `cursor`."""
    new = []
    for number, (state, added, length) in enumerate(zip(states, written, lengths.tolist(), strict=True)):
        frames = [Span(state.num_frames + start, state.num_frames + end) for start, end in added.frames]
        before = state.written
        after = WrittenTokens(
            before.tokens + added.tokens, before.frames + frames, before.confidences + added.confidences
        )
        own = Cursor(*(rows[number : number + 1].clone() for rows in cursor))
        new.append(GreedyPath(after, state.num_frames + length, own))
    return new
