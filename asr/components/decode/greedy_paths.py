"""Parts shared by greedy searches of transducers: emitted tokens, and the state of a stream."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.kernels.choice import exact
from asr.base.system.devices import answers_at_once
from asr.components.decode.fusion.shallow_fusion import Context
from asr.components.decode.token_times import with_times_of
from asr.interfaces import BLANK_ID, NO_BIASING, Biasing, Hypothesis, Span, TransducerHead


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
        biasing: hotwords of the stream.
        context: state of the hotwords; None: unknown, because the last frames were decoded without hotwords.
    """

    written: WrittenTokens
    num_frames: int
    cursor: Cursor
    biasing: Biasing = NO_BIASING
    context: Context | None = None


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


def begin(head: TransducerHead, number: int) -> Cursor:
    """Return the state of `number` utterances before their first frame."""
    state = head.predictor.initial_state(number)
    tokens = torch.full((number,), BLANK_ID, device=state.device)
    out, state = head.predictor.step(tokens, state)
    scores = torch.zeros(number, dtype=exact(state.device), device=state.device)
    return Cursor(torch.zeros_like(tokens), tokens, scores, head.joiner.of_tokens(out), state)


def read(head: TransducerHead, cursor: Cursor, tokens: Tensor) -> Cursor:
    """Advance the prediction network by tokens (B,); utterances with a blank keep their state."""
    writes = tokens != BLANK_ID
    if answers_at_once(tokens.device) and not bool(writes.any()):
        return cursor
    tokens = torch.where(writes, tokens, cursor.tokens)
    out, after = head.predictor.step(tokens, cursor.state)
    state = torch.where(writes.view(-1, *[1] * (after.dim() - 1)), after, cursor.state)
    before = torch.where(writes[:, None], head.joiner.of_tokens(out), cursor.before)
    return cursor._replace(tokens=tokens, before=before, state=state)


def hypotheses(
    head: TransducerHead, written: Sequence[WrittenTokens], scores: Sequence[float], lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    """Return one hypothesis per utterance, given its tokens, the score of its path, and its number of frames."""
    found = []
    for row, score, length in zip(written, scores, lengths, strict=True):
        inside = [Span(start, min(end, length)) for start, end in row.frames]
        found.append([with_times_of(head, Hypothesis(row.tokens, score, inside, row.confidences), length)])
    return found


def begin_stream(head: TransducerHead, biasing: Biasing) -> GreedyPath:
    """Begin a stream with hotwords."""
    return GreedyPath(WrittenTokens([], [], []), 0, begin(head, 1), biasing)


def together(states: Sequence[GreedyPath]) -> Cursor:
    """Concatenate the states of streams into one batch."""
    return Cursor(*map(torch.cat, zip(*(state.cursor for state in states), strict=True)))


def continued(
    states: Sequence[GreedyPath],
    lengths: Tensor,
    written: Sequence[WrittenTokens],
    cursor: Cursor,
    contexts: Sequence[Context | None],
) -> list[GreedyPath]:
    """Return the states after `lengths` more frames (B,), in which streams emitted `written` and reached `cursor`."""
    new = []
    rows = zip(states, written, lengths.tolist(), contexts, strict=True)
    for number, (state, added, length, context) in enumerate(rows):
        frames = [Span(state.num_frames + start, state.num_frames + end) for start, end in added.frames]
        before = state.written
        after = WrittenTokens(
            before.tokens + added.tokens, before.frames + frames, before.confidences + added.confidences
        )
        own = Cursor(*(rows[number : number + 1].clone() for rows in cursor))
        new.append(GreedyPath(after, state.num_frames + length, own, state.biasing, context))
    return new


def hypothesis(state: GreedyPath) -> Hypothesis:
    """Return the hypothesis of a stream; all its tokens are final."""
    tokens, frames, confidences = state.written
    return Hypothesis(tokens, float(state.cursor.scores), frames, confidences, num_final=len(tokens))


def decide(state: GreedyPath, tokens: list[int]) -> GreedyPath:
    """Return the state unchanged: there is only one hypothesis."""
    return state


def forget(state: GreedyPath, num_tokens: int) -> GreedyPath:
    """Drop the first `num_tokens` tokens; the state of the prediction network still depends on them."""
    tokens, frames, confidences = state.written
    rest = WrittenTokens(tokens[num_tokens:], frames[num_tokens:], confidences[num_tokens:])
    return state._replace(written=rest)


def settled(state: GreedyPath) -> GreedyPath:
    """Make all tokens final; return the state that continues after them."""
    return state._replace(written=WrittenTokens([], [], []))
